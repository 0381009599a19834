"""Commands to type if a lock does not hold, quoted so that they can be pasted."""

from __future__ import annotations

import shlex

from torchwise.lock.entry import Entry
from torchwise.report.command_line import command_line


def anew(entry: Entry, *more: str) -> str:
    """Return the command that tunes as before after a change of model, inputs or software, and locks the result."""
    spec = entry.decision.workload
    return f"{command_line('tune', spec, *more, allow=entry.allow)} && {_lock(spec.target)}"


def from_scratch(entry: Entry) -> str:
    """Return the same for an unchanged target: without `--fresh` the stored plan would be chosen once more."""
    return anew(entry, "--fresh")


def first(target: str) -> str:
    """Return the command that tunes and locks a target that is not locked on this hardware."""
    return f"torchwise tune {shlex.quote(target)} && {_lock(target)}"


def _lock(target: str) -> str:
    return f"torchwise lock {shlex.quote(target)}"
