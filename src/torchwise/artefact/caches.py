"""Where Inductor and Triton keep compiled code: files named by what they were made from, so that folders can merge."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from torchwise.artefact.package import put
from torchwise.errors import InputError
from torchwise.realize import private

name = functools.partial(private.look_up, "an artefact")

CACHE_DIR = ("torch._inductor.runtime.cache_dir_utils", "cache_dir")
TRITON_CACHE_DIR = ("torch._inductor.runtime.cache_dir_utils", "triton_cache_dir")
LEFT_OUT = (".lock", ".tmp")


def collect(folder: Path) -> dict[str, bytes]:
    """Return the files of compiled code in a worker's `Job.cache_dir` by the names that they have in an artefact."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix not in LEFT_OUT:
            place = file.relative_to(folder)
            found[str(place) if place.parts[0] == "triton" else f"inductor/{place}"] = file.read_bytes()
    return found


def place(code: Mapping[str, bytes]) -> int:
    """Put compiled code where this process looks for it; return how many files were not there yet.

    What is there already stays: a file of the same name was made from the same source.

    Raises:
        InputError: a file cannot be written; those that were are whole.
        UnsupportedError: this torch keeps its code elsewhere.
    """
    folders = {"inductor": Path(name(CACHE_DIR)()), "triton": _triton()}
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
    """Return Triton's folder: by Inductor's rule, which has one for each GPU, that of the first."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or name(TRITON_CACHE_DIR)(0))
