"""Records to JSON and back, by msgspec: every field is checked against its type when read, and nothing is passed over.

What is refused is named with its place, its value and the rule (`records/refusal.py`). Which numbers a field takes
stands in its type (`records/bounds.py`). A rule about several fields is a method `check_read` of the record; it holds
for what is read, and not for what a search is just making.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import msgspec

from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import brief, parse_json, shown
from torchwise.plan import Plan
from torchwise.plan.known import check_known
from torchwise.records.refusal import refusal

T = TypeVar("T")

BITS_64 = range(-(2**63), 2**63)


def to_builtins(record: Any) -> Any:
    """Return a record as dicts, lists, strings and numbers."""
    return msgspec.to_builtins(record)


def to_json(record: Any) -> str:
    """Return a record as one line of JSON. A float that is not finite becomes null, as JSON has none.

    In an interval that is infinity, such as for calls after which a plan may never have paid; it is read as such.
    """
    return msgspec.json.encode(record).decode()


def from_builtins(data: Any, kind: type[T], *, stored: bool = False) -> T:
    """Read what `to_builtins` wrote.

    Args:
        data: dicts, lists, strings and numbers.
        kind: class of the record.
        stored: whether it is from a store, which other versions and programs with plug-ins share: fields that a later
            version added are passed over, but in plans, and plans may name what is not known here.

    Raises:
        InputError: a field is missing, unknown, of another type, or holds a value that its class refuses.
    """
    try:
        try:
            record = msgspec.convert(data, kind, str_keys=True)
        except msgspec.ValidationError:
            record = msgspec.convert(_with_infinities(data), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise refusal(error, data, kind) from None
    except RecursionError:
        raise InputError(f"this is no {kind.__name__}: it is nested too deeply") from None
    try:
        _Check(stored).check(data, record, "$")
    except InputError as error:
        raise type(error)(f"this is no {kind.__name__}: {brief(error)}") from None
    return record


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Read what `to_json` wrote.

    Raises:
        InputError: it is no JSON, or a field is missing, unknown, of another type, or holds a refused value.
    """
    return from_builtins(parsed(text, kind), kind)


def parsed(text: str | bytes, kind: type) -> Any:
    """Return the plain data of a text that is to be a record.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"this is no {kind.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Document:
    """A record that is kept by itself. Its field `schema` says how it is written, by default as this version does."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote.

        Raises:
            InputError: it is no such record, or of another schema.
        """
        data = parsed(text, cls)
        check_schema(data, cls, next(str(field.default) for field in fields(cls) if field.name == "schema"))
        return from_builtins(data, cls)


def check_schema(data: Any, kind: type, known: str) -> None:
    """Refuse data of another schema, before anything is said that may follow from that.

    Raises:
        InputError: it is of another, or names none.
    """
    if not isinstance(data, dict):
        raise InputError(f"this is no {kind.__name__}: it is {shown(data)}, but must be an object")
    if "schema" not in data:
        raise InputError(f'this is no {kind.__name__}: it names no schema, such as "schema":"{known}"')
    if (found := data["schema"]) != known:
        raise InputError(f"schema is {shown(found)}, but this version reads {known!r}")


@dataclass(frozen=True, slots=True)
class _Check:
    """Holds a record against the data that it was made of: all of it must be there, and mean something."""

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
            raise InputError(f"{place} is {shown(value)}, but must be a whole number of at most 64 bits")

    def _record(self, data: Mapping[str, Any], value: Any, place: str, names: Collection[str]) -> None:
        is_plan = isinstance(value, Plan)
        if not self.stored or is_plan:
            for key in data:
                if key not in names:
                    raise InputError(f"{place} has an unknown field {shown(key)}{did_you_mean(str(key), names)}")
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
        """Refuse a document within another that is of another schema."""
        known = type(value).__dataclass_fields__["schema"].default
        if value.schema != known:
            raise InputError(f"schema is {shown(value.schema)}, but must be {known!r}")

    def _list(self, data: Any, value: Any, place: str) -> None:
        if len(data) != len(value):  # of a set
            raise InputError(f"{place} holds something twice, but each may stand there once")
        if value and not isinstance(value, (set, frozenset)) and not isinstance(value[0], float):
            for index, (item, made) in enumerate(zip(data, value, strict=True)):
                self.check(item, made, f"{place}[{index}]")


def _names(kind: type) -> Collection[str]:
    """Return the fields of a record; none of what is no record."""
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
"""The fields of `Interval`, which no other record has alone."""
