"""Read JSON and TOML strictly, from text and files, and sizes and durations as people write them.

Errors name the location.

Strict data is UTF-8 without a byte order mark, without duplicate keys, and with finite numbers only. Python's own
parsers accept more. Other programs may reject such data, or read it differently.
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
"""Maximum size of a file to read, in bytes: about 100 times the largest file of Torchwise so far."""
MAX_MESSAGE = 800
"""Maximum number of characters in a message about a file."""
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_TOO_DEEP = "it is nested too deeply to be read"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def short_repr(value: Any) -> str:
    """Return the repr of a value for messages, short even for large or deep values."""
    return _SHORT.repr(value)


UNITS = {"": 1, "B": 1} | {
    f"{prefix}{binary}B": (1024 if binary else 1000) ** power
    for power, prefix in enumerate("KMGT", start=1)
    for binary in ("", "i")
}
"""Bytes of each unit: 1 GB is 10^9 bytes, and 1 GiB is 2^30."""
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:[eE]\+?\d+)?) *(?P<unit>[A-Za-z]*)", re.ASCII)


def to_bytes(value: Any, name: str, unit: str = "B") -> int:
    """Return the number of bytes in a size such as "2GB", "1.5 GiB" or 1000.

    Args:
        value: the size, as text or a number.
        name: what it is a size of, for the message.
        unit: the unit of a size without one.

    Raises:
        InputError: it is no finite size of at least one byte.
    """
    parts = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    factor = UNITS.get(parts["unit"] or unit) if parts else None
    number = float(parts["number"]) * factor if parts and factor else 0.0
    if not 1 <= number < math.inf:
        raise InputError(f"{name} is {value!r}, but must be a finite size of at least one byte, such as 2GB or 2GiB")
    return int(number)


_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?) *(?P<unit>s|ms|us|µs|min|h|)", re.ASCII)
_SECONDS = {"s": 1.0, "": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0}


def to_seconds(value: Any, name: str) -> float:
    """Return the seconds in a duration such as "20ms", "0.5 s", "2min" or 0.02.

    Args:
        value: the duration, as text or a number of seconds.
        name: what it is a duration of, for the message.

    Raises:
        InputError: it is no positive finite duration.
    """
    parts = _DURATION.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    seconds = float(parts["number"]) * _SECONDS[parts["unit"]] if parts else 0.0
    if not 0 < seconds < math.inf:
        raise InputError(f"{name} is {value!r}, but must be a positive duration such as 20ms, 0.5s or 2min")
    return seconds


def brief(error: Exception) -> str:
    """Return an error's message. If it is too long, its middle is left out."""
    text = str(error)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} … {text[-MAX_MESSAGE // 2 :]}"


def read(file: str | Path, parse: Callable[[bytes], T]) -> T:
    """Read and parse a file.

    Raises:
        InputError: it cannot be read, is too large, or `parse` refuses it. The message begins with the path.
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
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL
        raise InputError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} has more than {MAX_BYTES} bytes, the maximum size")
    return data


def parse_json(text: str | bytes, *, constants: bool = False) -> Any:
    """Return the data in a JSON text. With `constants` it may hold NaN, Infinity and -Infinity, as Python writes them.

    Raises:
        InputError: it is no JSON, or has duplicate keys or numbers that are not finite. The message names the location.
    """
    text = _decode(text)
    if not text.strip():
        raise InputError("it is empty, but must be JSON")
    try:
        data = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=None if constants else _refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise InputError(_syntax(error)) from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError:  # from a hook, which does not know the location, or for a number with thousands of digits
        raise InputError(_refusal(text)) from None
    if _SURROGATE.search(text) and (place := _lone_surrogate(data)):
        raise InputError(f"{place} has half a character (a lone surrogate), which is invalid in text")
    return data


def parse_toml(text: str | bytes, *, constants: bool = False) -> dict[str, Any]:
    """Return the data in a TOML text. With `constants` it may hold nan and inf.

    Raises:
        InputError: it is no TOML, or has a number that is not finite. The message names the location.
    """
    try:
        return tomllib.loads(_decode(text), parse_float=float if constants else _finite)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"it is no TOML: {error}") from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except ValueError as error:  # a number that is not finite, or has thousands of digits
        raise InputError(f"it has an invalid number: {error}") from None


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
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key is duplicate")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not finite")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all of its keys, including duplicates."""


class _InvalidNumber(str):
    """The text of an invalid number."""


def _syntax(error: json.JSONDecodeError) -> str:
    return f"it is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _refusal(text: str) -> str:
    """Describe the invalid data in a text that Python itself accepts, and its location."""

    def number(text: str) -> Any:
        return _InvalidNumber(text) if not math.isfinite(float(text)) else 0.0

    def parse_int(text: str) -> Any:
        return _InvalidNumber(text) if len(text) > 4000 else 0  # Python refuses such numbers

    try:
        data = json.loads(
            text, object_pairs_hook=_Pairs, parse_float=number, parse_int=parse_int, parse_constant=_InvalidNumber
        )
    except json.JSONDecodeError as error:  # after the invalid data
        return _syntax(error)
    except RecursionError:
        return _TOO_DEEP
    for place, value in _walk(data, "$"):
        if isinstance(value, _InvalidNumber):
            return f"{_short(place)} is {_short(value, 20)}, but must be a finite number with fewer digits"
        if isinstance(value, _Pairs) and (duplicate := next(_find_duplicates(value), None)) is not None:
            return f"{_short(place)} has the key {short_repr(duplicate)} twice, but keys must be unique"
    return "it has a number that cannot be read"


def _find_duplicates(pairs: _Pairs) -> Iterator[str]:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            yield key
        seen.add(key)


def _lone_surrogate(data: Any) -> str | None:
    """Return the location of the first text with a lone surrogate."""
    for place, value in _walk(data, "$"):
        texts = value if isinstance(value, dict) else [value]
        if any(isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text) for text in texts):
            return _short(place).encode(errors="replace").decode()
    return None


def _short(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def _walk(data: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield each value with its location, such as `$.trials[0].plan`, parents first, without recursion."""
    remaining = [(place, data)]
    while remaining:
        place, data = remaining.pop()
        yield place, data
        if isinstance(data, dict):
            inner = [(f"{place}.{key}", value) for key, value in data.items()]
        elif isinstance(data, _Pairs):
            inner = [(f"{place}.{key}", value) for key, value in data]
        elif isinstance(data, list):
            inner = [(f"{place}[{index}]", value) for index, value in enumerate(data)]
        else:
            continue
        remaining += reversed(inner)
