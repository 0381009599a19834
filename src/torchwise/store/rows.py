"""Records to text and back. A row that cannot be read is named, with its table and number."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from torchwise.errors import InputError, StorageError
from torchwise.records import codec

T = TypeVar("T")

WAY_OUT = "delete the study, or read it with the version of Torchwise that wrote it"


def dump(record: Any) -> str:
    """Return a record as JSON text. Infinity and NaN are kept as such, which Python reads back and plain JSON lacks."""
    return json.dumps(codec.to_builtins(record), separators=(",", ":"))


def load(text: str, kind: type[T], *, row: str, written: str, known: str, way_out: str = WAY_OUT) -> T:
    """Read what `dump` wrote.

    Args:
        text: the stored text.
        kind: class of the record.
        row: what to call the row in a message, such as "trial 3 of study 1".
        written: the row's format.
        known: the format that this version reads.
        way_out: what to do about a row that cannot be read.

    Raises:
        StorageError: another format, or no such record.
    """
    if written != known:
        raise StorageError(f"{row} has format {written!r}, but this version reads {known!r}; {way_out}")
    try:
        return codec.from_builtins(json.loads(text), kind)
    except (InputError, ValueError) as error:
        raise StorageError(f"{row} cannot be read: {error}; {way_out}") from error
