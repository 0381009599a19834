"""Read JSON and TOML as plain data, strictly, and the files that hold them. Errors name their place.

Strict data is UTF-8 without a byte order mark, with each key once and finite numbers alone. Python's own readers accept
more than that. Other programs read something else from such data, or nothing.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from torchwise.errors import InputError

T = TypeVar("T")

MAX_BYTES = 2**28
"""Maximum size of a file to read, in bytes. The largest one written so far has a hundredth of it."""
MAX_MESSAGE = 800
"""Maximum number of characters in a message about a file."""
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_TOO_DEEP = "it is nested too deeply to be read"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def short_repr(value: Any) -> str:
    """Return a value as messages show it: short, however large or deep it is."""
    return _SHORT.repr(value)


def brief(error: Exception) -> str:
    """Return an error's message, without its middle if it is too long to be read, such as a value of a megabyte."""
    text = str(error)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} … {text[-MAX_MESSAGE // 2 :]}"


def read(file: str | Path, parse: Callable[[bytes], T]) -> T:
    """Read a file by `parse`.

    Raises:
        InputError: it cannot be read, is too large, or `parse` refuses it. The message begins with the file.
    """
    data = read_bytes(file)
    try:
        return parse(data)
    except InputError as error:
        raise type(error)(f"{file}: {brief(error)}") from None


def read_bytes(file: str | Path) -> bytes:
    """Return the contents of a file.

    Raises:
        InputError: it cannot be read, or is too large.
    """
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise InputError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} has more than {MAX_BYTES} bytes, which is the most that is read")
    return data


def parse_json(text: str | bytes, *, constants: bool = False) -> Any:
    """Return the data in a JSON text.

    Args:
        text: the JSON.
        constants: whether it may hold NaN, Infinity and -Infinity, as Python writes them.

    Raises:
        InputError: it is no JSON, or holds refused data (a key twice, a number that is not finite). The message names
            the place.
    """
    text = _decode(text)
    if not text.strip():
        raise InputError("it is empty, but must be JSON")
    try:
        made = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=None if constants else _refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise InputError(_syntax(error)) from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError:  # from one of our hooks, which do not know their place, or for a number of thousands of digits
        raise InputError(_refusal(text)) from None
    if _SURROGATE.search(text) and (place := _lone_surrogate(made)):
        raise InputError(f"{place} holds half a character (a lone surrogate), which no text has")
    return made


def parse_toml(text: str | bytes, *, constants: bool = False) -> dict[str, Any]:
    """Return the data in a TOML text.

    Args:
        text: the TOML.
        constants: whether it may hold nan and inf.

    Raises:
        InputError: it is no TOML, or holds a number that is not finite. The message names the place.
    """
    try:
        return tomllib.loads(_decode(text), parse_float=float if constants else _finite)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is no TOML: {error}") from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError as error:  # a number that is not finite, or of thousands of digits
        raise InputError(f"it holds a number that is refused: {error}") from None


def _decode(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    if text.startswith(_BYTE_ORDER_MARKS):
        raise InputError("it begins with a byte order mark, but must be UTF-8 without one: save it as plain UTF-8")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        raise InputError(
            f"it is not UTF-8: line {line} has the byte 0x{text[error.start]:02x} at its byte {column}"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Pairs(list[tuple[str, Any]]):
    """An object with all of its keys, for a second look."""


class _Odd(str):
    """A number as it is written, which is refused."""


def _syntax(error: json.JSONDecodeError) -> str:
    return f"it is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _refusal(text: str) -> str:
    """Return the refused data in a text that Python itself reads, and its place."""

    def number(text: str) -> Any:
        return _Odd(text) if not math.isfinite(float(text)) else 0.0

    def parse_int(text: str) -> Any:
        return _Odd(text) if len(text) > 4000 else 0  # Python refuses to read such a one

    try:
        made = json.loads(text, object_pairs_hook=_Pairs, parse_float=number, parse_int=parse_int, parse_constant=_Odd)
    except json.JSONDecodeError as error:  # further on
        return _syntax(error)
    except RecursionError:
        return _TOO_DEEP
    for place, value in _walk(made, "$"):
        if isinstance(value, _Odd):
            return f"{_short(place)} is {_short(value, 20)}, but must be a finite number of some digits"
        if isinstance(value, _Pairs) and (twice := next(_find_duplicates(value), None)) is not None:
            return f"{_short(place)} has the key {short_repr(twice)} twice, but each may stand there once"
    return "it holds a number that cannot be read"


def _find_duplicates(pairs: _Pairs) -> Iterator[str]:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            yield key
        seen.add(key)


def _lone_surrogate(data: Any) -> str | None:
    """Return the place of the first text that has one."""
    for place, value in _walk(data, "$"):
        texts = value if isinstance(value, dict) else [value]
        if any(isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text) for text in texts):
            return _short(place).encode(errors="replace").decode()
    return None


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _walk(data: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield each value with its place, such as `$.trials[0].plan`, from the outside inwards, however deep."""
    left = [(place, data)]
    while left:
        place, data = left.pop()
        yield place, data
        if isinstance(data, dict):
            inner = [(f"{place}.{key}", value) for key, value in data.items()]
        elif isinstance(data, _Pairs):
            inner = [(f"{place}.{key}", value) for key, value in data]
        elif isinstance(data, list):
            inner = [(f"{place}[{index}]", value) for index, value in enumerate(data)]
        else:
            continue
        left += reversed(inner)
