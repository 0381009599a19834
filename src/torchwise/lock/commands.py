"""Commands for a lock that is no longer valid, quoted for a shell."""

from __future__ import annotations

import shlex

from torchwise.lock.entry import Entry
from torchwise.report.commands import command_line


def tune_again(entry: Entry, *more: str) -> str:
    """Return the command that tunes again after a change of model, inputs or software, and locks the result."""
    spec = entry.decision.workload
    return f"{command_line('tune', spec, *more, allow=entry.allow)} && {_lock(spec.target)}"


def tune_fresh(entry: Entry) -> str:
    """Return the same command for an unchanged target, which needs `--fresh` to ignore the stored study."""
    return tune_again(entry, "--fresh")


def tune_first(target: str) -> str:
    """Return the command that tunes and locks a target that is not locked on this hardware."""
    return f"torchwise tune {shlex.quote(target)} && {_lock(target)}"


def _lock(target: str) -> str:
    return f"torchwise lock {shlex.quote(target)}"
