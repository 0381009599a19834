"""Read and write the lock file: sections sorted by target, mode and hardware.

A section is one table, so that a merge conflict concerns one target on one kind of hardware. It has no date and no host
name, and values have one canonical form. So locking the same decisions again writes the same bytes. Python reads TOML
(`tomllib`), but cannot write it. Existing writers spread every interval and every plan over several lines, which are
hard to review.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.errors import InputError
from torchwise.keywords import checked_keywords
from torchwise.parsing import brief, parse_toml, read_bytes
from torchwise.records import Decision
from torchwise.records.shown import Shown
from torchwise.study.lock.entry import Entry, Key, entry_in, section_of

SCHEMA = "torchwise.lock/1"
DEFAULT = "torchwise.lock"
HEADING = """\
# The plan of each model on each kind of hardware. `torchwise lock` writes it, and `torchwise check` verifies it again.
# Review it like code. You may delete whole sections by hand. Any other edit is refused.
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Lock(Shown):
    """Contents of a lock file: at most one entry for each key, sorted by key."""

    entries: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        return f"<Lock of {', '.join(self.targets) or 'nothing'}>"

    @property
    def targets(self) -> tuple[str, ...]:
        """Each target once."""
        return tuple(dict.fromkeys(entry.decision.workload.target for entry in self.entries))

    def select_entries(self, target: str) -> tuple[Entry, ...]:
        """Return the entries of a target, on any hardware.

        Raises:
            InputError: there is none. The message names similar targets.
        """
        found = tuple(entry for entry in self.entries if entry.decision.workload.target == target)
        if not found:
            similar = difflib.get_close_matches(target, self.targets, n=3) or self.targets
            others = f"it has {', '.join(similar)}" if similar else "it is empty"
            raise InputError(f"the lock has no section for {target!r} ({others}): torchwise lock {target}")
        return found

    def with_entries(self, entries: Iterable[Entry]) -> Lock:
        """Return this lock with `entries` added. Each replaces any entry with its key."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return Lock(tuple(merged[key] for key in sorted(merged)))

    def to_toml(self) -> str:
        """Return the text of the file."""
        head = f"{HEADING}{format_pair('schema', SCHEMA)}\n"
        return "\n".join([head, *(_format_entry(entry) for entry in self.entries)])


def read(path: str | Path = DEFAULT) -> Lock:
    """Read a lock file. Nothing in it is run.

    Raises:
        InputError: the file is missing, is no TOML or has another schema. Or a section was edited, or has an unknown
            plan. The message has the line and a solution.
    """
    try:
        data = read_bytes(path)
    except InputError as error:
        raise InputError(f"{error}; torchwise lock TARGET creates one") from None
    try:
        return _parse_lock(data)
    except InputError as error:
        raise InputError(f"{path}{brief(error)}") from None


def write(lock: Lock, path: str | Path = DEFAULT) -> Path:
    """Write a lock file atomically, and return the path.

    Raises:
        StorageError: it cannot be written.
    """
    from torchwise.records.files import write_atomically

    return write_atomically(lock.to_toml(), path)


@checked_keywords()
def decision(
    target: str, path: str | Path = DEFAULT, *, mode: str | None = None, device: str | None = None
) -> Decision:
    """Return the lock file's decision for `target` on this hardware, for use with `torchwise.apply`.

    If there is none for this hardware, the decision for the most similar one is returned. `apply` runs the
    original model instead of its plan, and names the differences. So a program starts on any machine. With `strict` it
    raises.

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
        raise InputError(f"{path} has {target} for {' and for '.join(modes)}: pass the mode")
    if mode is not None and mode not in modes:
        raise InputError(f"mode is {mode!r}, but {path} has {target} only for {', '.join(modes)}")
    here = environment.detect(device or environment.default_device())
    matching = [entry.decision for entry in entries if mode in (None, entry.decision.workload.mode)]
    return min(matching, key=lambda d: (d.environment.device != here.device, len(d.environment.differences(here))))


def _format_entry(entry: Entry) -> str:
    lines = [format_header(entry.key), *(format_pair(name, value) for name, value in section_of(entry).items())]
    return "\n".join(lines) + "\n"


def _parse_lock(contents: bytes) -> Lock:
    """Read a file's text. Error messages continue after the file's name."""
    text = contents.decode(errors="replace")
    try:
        data = parse_toml(contents, constants=True)
    except InputError as error:
        conflict = _line(text, "<<<<<<<")
        if conflict:
            raise InputError(
                f"{conflict} has markers of a merge conflict: keep whole sections of either side"
            ) from None
        raise InputError(f": {error}; restore it from version control, or lock again") from None
    if (schema := data.pop("schema", None)) != SCHEMA:
        raise InputError(f"{_line(text, 'schema')}: schema is {schema!r:.80}, but this version reads {SCHEMA!r}")
    return Lock().with_entries(_entry(text, key, section) for key, section in _sections(text, data))


def _sections(text: str, data: Mapping[str, Any]) -> Iterable[tuple[Key, Mapping[str, Any]]]:
    for target, modes in data.items():
        for mode, machines in _table(text, modes, target).items():
            for machine, section in _table(text, machines, target, mode).items():
                yield (target, mode, machine), _table(text, section, target, mode, machine)


def _table(text: str, value: Any, *path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value:
        place = _line(text, format_key(path[-1]))
        raise InputError(f"{place}: {path[-1]!r} is not a section of target, mode and hardware: delete it")
    return value


def _entry(text: str, key: Key, section: Mapping[str, Any]) -> Entry:
    try:
        return entry_in(key, section)
    except InputError as error:
        way_out = f"restore the section from version control, or delete it and lock it again: torchwise lock {key[0]}"
        raise InputError(f"{_line(text, format_header(key))}: section {', '.join(key)}: {error}; {way_out}") from None


def _line(text: str, prefix: str) -> str:
    """Return ", line N" of the first line with this prefix, or an empty string if none does."""
    lines = text.splitlines()
    return next((f", line {number}" for number, line in enumerate(lines, 1) if line.startswith(prefix)), "")


def format_header(path: Iterable[str]) -> str:
    """Return the line that begins a table."""
    return f"[{'.'.join(map(format_key, path))}]"


def format_key(name: str) -> str:
    """Return a name as a key, quoted if it must be."""
    return name if _BARE.fullmatch(name) else _quote(name)


def format_pair(name: str, value: Any) -> str:
    """Return `name = value`, on one line. In a list of several texts, each text has its own line."""
    if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(item, str) for item in value):
        return "\n".join([f"{format_key(name)} = [", *(f"  {_quote(item)}," for item in value), "]"])
    return f"{format_key(name)} = {_format_value(value)}"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, (int, float)):
        return repr(value)  # the shortest text that is read as the same float; `inf` and `nan` as in TOML
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{format_key(name)} = {_format_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_value, value))}]"
    raise TypeError(f"{value!r} is of type {type(value).__name__}, which TOML does not have")


def _quote(text: str) -> str:
    """Return a basic string. TOML has JSON's escapes, and wants one more character escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
