"""Records to JSON and back, by msgspec: every field is checked against its type when read."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import msgspec

from torchwise.errors import InputError

T = TypeVar("T")


def to_builtins(record: Any) -> Any:
    """Return a record as dicts, lists, strings and numbers."""
    return msgspec.to_builtins(record)


def to_json(record: Any) -> str:
    """Return a record as one line of JSON. A float that is not finite becomes null, as JSON has none.

    In an interval that is infinity, such as for calls after which a plan may never have paid; it is read as such.
    """
    return msgspec.json.encode(record).decode()


def from_builtins(data: Any, kind: type[T]) -> T:
    """Read what `to_builtins` wrote.

    Raises:
        InputError: a field is missing, of another type, or holds a value that its class refuses.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"this is no {kind.__name__}: {error}") from None


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Read what `to_json` wrote.

    Raises:
        InputError: it is no JSON, or a field is missing, of another type, or holds a refused value.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(_with_infinities(msgspec.json.decode(text)), kind, str_keys=True)
        raise InputError(f"this is no {kind.__name__}: {error}") from None
    except msgspec.DecodeError as error:
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
        return of_this_schema(text, cls)


D = TypeVar("D", bound=Document)


def of_this_schema(text: str | bytes, kind: type[D]) -> D:
    """Read a document, and refuse one of another schema than this version's, as `Document.from_json` does."""
    record = from_json(text, kind)
    known = next(field.default for field in fields(kind) if field.name == "schema")
    if (found := getattr(record, "schema", None)) != known:
        raise InputError(f"schema is {found!r}, but this version reads {known!r}")
    return record


def _with_infinities(data: Any) -> Any:
    if isinstance(data, list):
        return [_with_infinities(item) for item in data]
    if not isinstance(data, dict):
        return data
    if data.keys() == _INTERVAL:
        return {name: math.inf if value is None else value for name, value in data.items()}
    return {name: _with_infinities(value) for name, value in data.items()}


_INTERVAL = {"low", "mid", "high"}
"""The fields of `Interval`, which no other record has alone."""
