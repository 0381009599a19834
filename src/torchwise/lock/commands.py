"""What to type where a lock does not hold, quoted so that it can be pasted."""

from __future__ import annotations

import shlex

from torchwise.lock.entry import Entry
from torchwise.report.command_line import command_line


def anew(entry: Entry, *more: str) -> str:
    """Return what tunes as before, for a model, inputs or software that changed, and locks what comes of it."""
    spec = entry.decision.workload
    return f"{command_line('tune', spec, *more, allow=entry.allow)} && {_lock(spec.target)}"


def from_scratch(entry: Entry) -> str:
    """Return the same for what did not change: what is stored would be decided for once more."""
    return anew(entry, "--fresh")


def first(target: str) -> str:
    """Return what tunes and locks a target that is not locked on this hardware."""
    return f"torchwise tune {shlex.quote(target)} && {_lock(target)}"


def _lock(target: str) -> str:
    return f"torchwise lock {shlex.quote(target)}"
