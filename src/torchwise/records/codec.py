"""Records to JSON and back, by msgspec: every field is checked against its type when read, and nothing is ignored.

An error names the place, the value and the rule (`records/refusal.py`). A field's type says which numbers it takes
(`records/statistics.py`). A rule about several fields is a method `check_read` of the record. That rule holds for
data that are read, and not for a record that a search is building.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import msgspec

from torchwise.errors import InputError, did_you_mean
from torchwise.former_names import with_current_names
from torchwise.parsing import brief, parse_json, short_repr
from torchwise.plan import Plan
from torchwise.plan.known_names import check_known
from torchwise.records.refusal import refusal

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
        data: dicts, lists, strings and numbers.
        kind: class of the record.
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
        raise refusal(error, data, kind) from None
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
    """Return the plain data of a record's text.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"this is no {kind.__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class Document:
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
    """Refuse data of another schema, before reporting any error that may follow from it.

    Raises:
        InputError: the data have another schema, or name none.
    """
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
