"""Checks of the CPU's instruction sets that earlier commands on this machine made, kept in a file.

Inductor makes them in each process whose cache is empty, so the first candidate of every command would make them
anew (`_torch/cpu_isa_cache.py`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torchwise._torch.cpu_isa_cache import TimedCheck
from torchwise.environment import detect
from torchwise.errors import InputError, StorageError
from torchwise.parsing import read_bytes
from torchwise.records import codec
from torchwise.records.files import write_atomically

FORMAT = 1
MAX_AGE_S = 7 * 24 * 3600.0
"""After this age the checks are made again. They hold a cost, and the machine may have been busy when it was taken."""

_known: dict[str, TimedCheck] = {}


def known_checks() -> dict[str, TimedCheck]:
    """Return the checks that hold here: those of this process, and before its first those of the file."""
    if not _known:
        with suppress(OSError, InputError):  # no file, or not one of ours: the checks are made
            file = checks_file()
            if time.time() - file.stat().st_mtime < MAX_AGE_S:
                _known.update(codec.from_json(read_bytes(file), dict[str, TimedCheck]))
    return dict(_known)


def add_checks(made: Mapping[str, TimedCheck]) -> None:
    """Add checks that a worker made, for later workers and for later commands."""
    _known.update(made)
    with suppress(OSError, StorageError):  # the next command makes them
        file = checks_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(codec.to_json(_known), file)


def checks_file() -> Path:
    """Return the file of this machine, this software and this C++ compiler."""
    from platformdirs import user_cache_dir

    facts = (FORMAT, detect("cpu").fingerprint, _compiler())
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    return Path(user_cache_dir("torchwise"), "cpu-checks", f"{digest}.json")


def _compiler() -> tuple[str, int, int]:
    """Return the file of the C++ compiler with its size and date, which differ for another version."""
    file = Path(shutil.which(os.environ.get("CXX") or "g++") or "").resolve()
    found = file.stat()
    return str(file), found.st_size, found.st_mtime_ns
