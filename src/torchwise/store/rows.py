"""Convert records to text and back. An error about an unreadable row names the row."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, TypeVar

from torchwise.errors import InputError, StorageError
from torchwise.parsing import parse_json
from torchwise.records import codec

T = TypeVar("T")
State = TypeVar("State", bound=StrEnum)

WAY_OUT = "delete the study, or read it with the version of Torchwise that wrote it"


def dump(record: Any) -> str:
    """Return a record as JSON text. It may contain Infinity and NaN, which Python reads, but strict JSON lacks."""
    return json.dumps(codec.to_builtins(record), separators=(",", ":"))


def load(text: str, kind: type[T], *, row: str, written: str, known: str, way_out: str = WAY_OUT) -> T:
    """Read the output of `dump`.

    Args:
        text: the stored text.
        kind: class of the record.
        row: name of the row in a message, such as "trial 3 of study 1".
        written: the row's format.
        known: the format that this version reads.
        way_out: advice for a row that cannot be read.

    Raises:
        StorageError: the format is another one, or the text is no such record.
    """
    if written != known:
        raise StorageError(f"{row} has format {written!r}, but this version reads {known!r}; {way_out}")
    try:
        return codec.from_builtins(parse_json(text, constants=True), kind, stored=True)
    except InputError as error:
        raise StorageError(f"{row} cannot be read: {error}; {way_out}") from error


def state_of(text: str, kind: type[State], *, row: str, way_out: str = WAY_OUT) -> State:
    """Read a state from its own column.

    Raises:
        StorageError: this version knows no such state.
    """
    try:
        return kind(text)
    except ValueError:
        raise StorageError(f"{row} is {text!r}, but this version knows {', '.join(kind)}; {way_out}") from None
