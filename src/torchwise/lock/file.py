"""The file: sections sorted by target, mode and hardware, read and written whole.

A section is one table, so that a merge conflict is about one target on one kind of hardware. It holds nothing that
changes by itself (no time of writing, no host name). So locking the same decisions again writes the same bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.errors import InputError
from torchwise.lock import toml
from torchwise.lock.entry import Entry
from torchwise.lock.schema import Key, entry_in, section_of
from torchwise.parsing import brief, parse_toml, read_bytes
from torchwise.records import Decision

SCHEMA = "torchwise.lock/1"
DEFAULT = "torchwise.lock"
HEADING = """\
# What each model runs by, on each kind of hardware. Written by `torchwise lock`, proven again by `torchwise check`.
# Review it like code. Whole sections may be deleted by hand; what is edited otherwise is refused.
"""


@dataclass(frozen=True, slots=True)
class Lock:
    """Contents of a lock file: at most one entry of each key, in the order of their keys."""

    entries: tuple[Entry, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Each target once."""
        return tuple(dict.fromkeys(entry.decision.workload.target for entry in self.entries))

    def select_entries(self, target: str) -> tuple[Entry, ...]:
        """Return the entries of a target, on any hardware.

        Raises:
            InputError: there is none. Near misses are named.
        """
        found = tuple(entry for entry in self.entries if entry.decision.workload.target == target)
        if not found:
            near = difflib.get_close_matches(target, self.targets, n=3) or self.targets
            others = f"it has {', '.join(near)}" if near else "it is empty"
            raise InputError(f"the lock has no section of {target!r} ({others}): torchwise lock {target}")
        return found

    def with_entries(self, entries: Iterable[Entry]) -> Lock:
        """Return this lock with `entries` added. Each replaces any entry with its key."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return Lock(tuple(merged[key] for key in sorted(merged)))

    def to_toml(self) -> str:
        """Return the text of the file."""
        head = f"{HEADING}{toml.pair('schema', SCHEMA)}\n"
        return "\n".join([head, *(_text(entry) for entry in self.entries)])


def read(path: str | Path = DEFAULT) -> Lock:
    """Read a lock file. Nothing in it is run.

    Raises:
        InputError: there is no such file, it is no TOML, has another schema, or a section was edited or is unknown
            here. The message has the line and the way out.
    """
    try:
        data = read_bytes(path)
    except InputError as error:
        raise InputError(f"{error}; torchwise lock TARGET makes one") from None
    try:
        return _parse_lock(data)
    except InputError as error:
        raise InputError(f"{path}{brief(error)}") from None


def write(lock: Lock, path: str | Path = DEFAULT) -> Path:
    """Write a lock file, which holds either all of the lock or its old contents. Return the path.

    Raises:
        StorageError: it cannot be written.
    """
    from torchwise.report.json_export import write_atomically

    return write_atomically(lock.to_toml(), path)


def decision(
    target: str, path: str | Path = DEFAULT, *, mode: str | None = None, device: str | None = None
) -> Decision:
    """Return the lock file's decision for `target` on this hardware, for use with `torchwise.apply`.

    If there is none for this hardware, the decision for the most similar one is returned. `apply` refuses that one, has
    the original answer, and names the differences. So a program starts on any machine. With `strict` it raises.

    Args:
        target: its name, as it was tuned and locked.
        path: the lock file.
        mode: "inference" or "training". It may be left out if only one of them is locked.
        device: "cpu" or "cuda", by default "cuda" if there is one.

    Raises:
        InputError: the file cannot be read or was edited, or holds no such target or mode.
    """
    entries = read(path).select_entries(target)
    modes = sorted({entry.decision.workload.mode for entry in entries})
    if mode is None and len(modes) > 1:
        raise InputError(f"{path} has {target} for {' and for '.join(modes)}: give the mode")
    if mode is not None and mode not in modes:
        raise InputError(f"mode is {mode!r}, but {path} has {target} for {', '.join(modes)} alone")
    here = environment.detect(device or environment.default_device())
    fitting = [entry.decision for entry in entries if mode in (None, entry.decision.workload.mode)]
    return min(fitting, key=lambda d: (d.environment.device != here.device, len(d.environment.differences(here))))


def _text(entry: Entry) -> str:
    lines = [toml.header(entry.key), *(toml.pair(name, value) for name, value in section_of(entry).items())]
    return "\n".join(lines) + "\n"


def _parse_lock(found: bytes) -> Lock:
    """Read a file's text. Error messages continue after the file's name."""
    text = found.decode(errors="replace")
    try:
        data = parse_toml(found, constants=True)
    except InputError as error:
        conflict = _line(text, "<<<<<<<")
        if conflict:
            raise InputError(f"{conflict} has marks of a merge conflict: keep whole sections of either side") from None
        raise InputError(f": {error}; take it from version control, or lock anew") from None
    if (schema := data.pop("schema", None)) != SCHEMA:
        raise InputError(f"{_line(text, 'schema')}: schema is {schema!r:.80}, but this version reads {SCHEMA!r}")
    return Lock().with_entries(_entry(text, key, section) for key, section in _sections(text, data))


def _sections(text: str, data: Mapping[str, Any]) -> Iterable[tuple[Key, Mapping[str, Any]]]:
    for target, modes in data.items():
        for mode, machines in _table(text, modes, target).items():
            for machine, section in _table(text, machines, target, mode).items():
                yield (target, mode, machine), _table(text, section, target, mode, machine)


def _table(text: str, found: Any, *path: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or not found:
        place = _line(text, toml.key(path[-1]))
        raise InputError(f"{place}: {path[-1]!r} stands where a section of target, mode and hardware must: delete it")
    return found


def _entry(text: str, key: Key, section: Mapping[str, Any]) -> Entry:
    try:
        return entry_in(key, section)
    except InputError as error:
        way_out = f"take the section from version control, or delete it and lock it again: torchwise lock {key[0]}"
        raise InputError(f"{_line(text, toml.header(key))}: of {', '.join(key)}: {error}; {way_out}") from None


def _line(text: str, begins: str) -> str:
    """Return ", line N" of the first line that begins so, or an empty string if none does."""
    lines = text.splitlines()
    return next((f", line {number}" for number, line in enumerate(lines, 1) if line.startswith(begins)), "")
