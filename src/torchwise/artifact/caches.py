"""Inductor's and Triton's folders of compiled code. Files are named by their source, so that folders can merge."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torchwise._torch import inductor
from torchwise.artifact.package import put
from torchwise.errors import InputError

FEATURE = "an artifact"
LEFT_OUT = (".lock", ".tmp")


def collect(folder: Path) -> dict[str, bytes]:
    """Return the files of compiled code in a worker's `Job.cache_dir` by their names in an artifact."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix not in LEFT_OUT:
            place = file.relative_to(folder)
            found[str(place) if place.parts[0] == "triton" else f"inductor/{place}"] = file.read_bytes()
    return found


def place(code: Mapping[str, bytes]) -> int:
    """Put compiled code into this process's cache folders, and return how many files were not there yet.

    Existing files stay: a file of the same name was made from the same source.

    Raises:
        InputError: a file cannot be written. Those that were written are whole.
        UnsupportedError: this torch keeps its code elsewhere.
    """
    folders = {"inductor": Path(inductor.CACHE_DIR.get(FEATURE)()), "triton": _triton()}
    new = 0
    for key, data in code.items():
        kind, _, rest = key.partition("/")
        file = folders[kind] / rest
        if file.exists():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{file.parent} cannot be made: {error.strerror}") from None
        put(file, data)
        new += 1
    return new


def _triton() -> Path:
    """Return Triton's folder. By Inductor's rule each GPU has one, and this is that of the first."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or inductor.TRITON_CACHE_DIR.get(FEATURE)(0))
