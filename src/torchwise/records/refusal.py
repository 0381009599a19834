"""Why data make no record, in words: the place, the value there, the rule, and near misses."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import brief, short_repr

_PLACE = re.compile(r" - at (?:`key` in )?`(?P<place>[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_LACKS = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def refusal(error: msgspec.ValidationError, data: Any, kind: type) -> InputError:
    """Return the error that says why `data` make no record of this kind. An InputError keeps its class."""
    said, found = str(error), _PLACE.search(str(error))
    place = found["place"] if found else "$"
    rule = said[: found.start()] if found else said
    cause = error.__cause__
    if isinstance(cause, InputError):
        where = f" (in {place})" if place != "$" else ""
        return type(cause)(f"this is no {kind.__name__}: {brief(cause)}{where}")
    return InputError(
        f"this is no {kind.__name__}: {_describe_problem(rule, place, _value_at(data, place), _kind_at(kind, place))}"
    )


def _describe_problem(rule: str, place: str, value: Any, kind: Any) -> str:
    if lacks := _LACKS.fullmatch(rule):
        name = lacks["name"]
        near = did_you_mean(name, map(str, value), lambda key: f"{name!r} in place of {key!r}") if value else ""
        return f"{place} lacks the field {name!r}{near}"
    found = "null" if value is None else short_repr(value)
    if words := list(_words_of(kind)):
        return f"{place} is {found}, but must be one of {', '.join(words)}{did_you_mean(str(value), words)}"
    needed = re.sub(r", got .*", "", rule.removeprefix("Expected "), flags=re.DOTALL)
    needed = re.sub(r"`([^`]*)`", lambda hit: _kinds(hit[1]), needed)
    if not rule.startswith("Expected "):
        return f"{place} is {found}, which is refused: {needed}"
    return f"{place} is {found}, but must be {needed}"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def _steps(place: str) -> Iterator[re.Match[str]]:
    return _STEP.finditer(place.removeprefix("$"))


def _value_at(data: Any, place: str) -> Any:
    """Return the value at a place. If msgspec does not name the place ("[...]"), return the value around it."""
    for step in _steps(place):
        if step["any"]:
            return data
        try:
            data = data[step["name"] if step["name"] else int(step["index"])]
        except (KeyError, IndexError, TypeError):  # a default took its place
            return None
    return data


def _kind_at(kind: Any, place: str) -> Any:
    """Return the type of the value at a place, or None if it is unknown."""
    for step in _steps(place):
        kind = next((inner for one in _alternatives(kind) if (inner := _inner(one, step))), None)
    return kind


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _inner(kind: Any, step: re.Match[str]) -> Any:
    if step["name"]:
        has_fields = is_dataclass(kind) or hasattr(kind, "__struct_fields__")
        return get_type_hints(kind).get(step["name"]) if has_fields else None
    arguments = get_args(kind)
    if get_origin(kind) is tuple and step["index"] and Ellipsis not in arguments:
        return arguments[int(step["index"])] if int(step["index"]) < len(arguments) else None
    return next((argument for argument in reversed(arguments) if argument is not Ellipsis), None)


def _words_of(kind: Any) -> Iterator[str]:
    """Yield the allowed words, if only certain words are allowed."""
    for one in _alternatives(kind):
        if isinstance(one, type) and issubclass(one, Enum):
            yield from (str(member.value) for member in one)
        if get_origin(one) is Literal:
            yield from map(str, get_args(one))
