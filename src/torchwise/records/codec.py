"""Records to JSON and back, by msgspec: every field is checked against its type when read, and nothing is ignored.

An error names the place, the value, the rule, and near misses. A field's type says which numbers it takes
(`records/statistics.py`). A rule about several fields is a method `check_read` of the record. That rule holds for
data that are read, and not for a record that a search is building.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from torchwise.errors import InputError, did_you_mean
from torchwise.former_names import with_current_names
from torchwise.parsing import brief, parse_json, short_repr
from torchwise.plan import Plan
from torchwise.plan.known_names import check_known
from torchwise.records.shown import Shown

T = TypeVar("T")

BITS_64 = range(-(2**63), 2**63)


def to_builtins(record: Any) -> Any:
    """Return a record as dicts, lists, strings and numbers."""
    return msgspec.to_builtins(record)


def to_json(record: Any) -> str:
    """Return a record as one line of JSON. A float that is not finite becomes null, as JSON has none.

    In an interval, null stands for infinity, for instance for calls after which a plan may never have paid. It is read
    back as infinity.
    """
    return msgspec.json.encode(record).decode()


def from_builtins(data: Any, kind: type[T], *, stored: bool = False) -> T:
    """Read the output of `to_builtins`.

    Args:
        stored: whether it is from a store, which other versions and programs with plug-ins share. Then fields that a
            later version added are ignored, except in plans, and plans may name choices unknown here.

    Raises:
        InputError: a field is missing, unknown, of another type, or holds a value that its class refuses.
    """
    data = with_current_names(data)
    try:
        try:
            record = msgspec.convert(data, kind, str_keys=True)
        except msgspec.ValidationError:
            record = msgspec.convert(_with_infinities(data), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _describe_refusal(error, data, kind) from None
    except RecursionError:
        raise InputError(f"this is no {kind.__name__}: it is nested too deeply") from None
    try:
        _Check(stored).check(data, record, "$")
    except InputError as error:
        raise type(error)(f"this is no {kind.__name__}: {brief(error)}") from None
    return record


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Read the output of `to_json`.

    Raises:
        InputError: it is no JSON, or a field is missing, unknown, of another type, or holds a refused value.
    """
    return from_builtins(parse(text, kind), kind)


def parse(text: str | bytes, kind: type) -> Any:
    """Return the plain data of a record's text. Text that is no JSON raises an `InputError`."""
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"this is no {kind.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Document(Shown):
    """A record that is kept by itself. Its field `schema` names its format, by default that of this version."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the output of `to_json`.

        Raises:
            InputError: it is no such record, or of another schema.
        """
        data = parse(text, cls)
        check_schema(data, cls, next(str(field.default) for field in fields(cls) if field.name == "schema"))
        return from_builtins(data, cls)


def check_schema(data: Any, kind: type, known: str) -> None:
    """Refuse data of another schema, before reporting any error that may follow from it."""
    if not isinstance(data, dict):
        raise InputError(f"this is no {kind.__name__}: it is {short_repr(data)}, but must be an object")
    if "schema" not in data:
        raise InputError(f'this is no {kind.__name__}: it names no schema, such as "schema":"{known}"')
    if (found := data["schema"]) != known:
        raise InputError(f"schema is {short_repr(found)}, but this version reads {known!r}")


@dataclass(frozen=True, slots=True)
class _Check:
    """Checks a record against the data it was made of: all data must be there, and mean something."""

    stored: bool

    def check(self, data: Any, value: Any, place: str) -> None:
        if isinstance(data, dict) and (names := _names(type(value))):
            self._record(data, value, place, names)
        elif isinstance(data, dict):
            for key, item in data.items():
                self.check(item, value.get(key), f"{place}.{key}")
        elif isinstance(data, (list, tuple)):
            self._list(data, value, place)
        elif isinstance(value, int) and value not in BITS_64:
            raise InputError(f"{place} is {short_repr(value)}, but must be a whole number of at most 64 bits")

    def _record(self, data: Mapping[str, Any], value: Any, place: str, names: Collection[str]) -> None:
        is_plan = isinstance(value, Plan)
        if not self.stored or is_plan:
            for key in data:
                if key not in names:
                    raise InputError(f"{place} has an unknown field {short_repr(key)}{did_you_mean(str(key), names)}")
        if "schema" in names:
            self._schema(value)
        for name in names:
            if name in data:
                self.check(data[name], getattr(value, name), f"{place}.{name}")
        try:
            if is_plan and not self.stored:
                check_known(value)
            elif (rule := getattr(value, "check_read", None)) is not None:
                rule()
        except InputError as error:
            raise type(error)(f"{error} (in {place})") from None

    def _schema(self, value: Any) -> None:
        """Refuse a nested document of another schema."""
        known = type(value).__dataclass_fields__["schema"].default
        if value.schema != known:
            raise InputError(f"schema is {short_repr(value.schema)}, but must be {known!r}")

    def _list(self, data: Any, value: Any, place: str) -> None:
        if isinstance(value, (set, frozenset)):
            if len(data) != len(value):
                raise InputError(f"{place} holds something twice, but each may stand there once")
        elif len(data) == len(value) and value and not isinstance(value[0], float):
            # A record may keep items of earlier versions elsewhere, such as notes. They are texts, which hold nothing.
            for index, (item, made) in enumerate(zip(data, value, strict=True)):
                self.check(item, made, f"{place}[{index}]")


def _names(kind: type) -> Collection[str]:
    """Return the fields of a record, or none for other types."""
    names: Collection[str] = getattr(kind, "__dataclass_fields__", getattr(kind, "__struct_fields__", ()))
    return names


def _with_infinities(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_with_infinities(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.keys() == _INTERVAL:
        return {name: math.inf if value is None else value for name, value in data.items()}
    return {name: _with_infinities(value) for name, value in data.items()}


_INTERVAL = {"low", "mid", "high"}
"""The fields of `Interval`. No other record has exactly these."""


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


def _describe_refusal(error: msgspec.ValidationError, data: Any, kind: type) -> InputError:
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
