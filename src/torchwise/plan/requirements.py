"""Properties that a plan must have besides right answers, named by the user."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from torchwise.errors import WorkloadError, did_you_mean

PropertyName = Literal["deterministic", "batch-invariant", "bitwise"]


class Property(StrEnum):
    """A property of answers down to their bits. A check of the same name shows whether a plan has it."""

    DETERMINISTIC = "deterministic"
    """Equal calls give equal bits: one after another, after other work, and in another process."""
    BATCH_INVARIANT = "batch-invariant"
    """A sample's answer has the same bits, whichever other samples are in its batch, and however many."""
    BITWISE = "bitwise"
    """Answers have the bits of the original model's."""


def read_properties(names: object) -> tuple[Property, ...]:
    """Return properties by name, each once and in one order.

    Raises:
        WorkloadError: a name is unknown.
    """
    given = [names] if isinstance(names, str) else names
    if not isinstance(given, Iterable):
        raise WorkloadError(f"require is {_show(names)}, but must be a list of {', '.join(Property)}")
    found = [_read(name) for name in given]
    return tuple(each for each in Property if each in found)


def _read(name: object) -> Property:
    try:
        return Property(name)  # type: ignore[arg-type]
    except ValueError:
        near = did_you_mean(name, Property) if isinstance(name, str) else ""
        raise WorkloadError(f"require is {_show(name)}, but must be one of {', '.join(Property)}{near}") from None


def _show(value: object) -> str:
    from torchwise.parsing import short_repr  # readers of JSON and TOML, which `torchwise --help` does without

    return short_repr(value)
