"""Folders that compilation writes to: whether they can be written, and what is free in them."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is written to.

    Attributes:
        path: where it is, or will be made.
        free: bytes free there, 0 where unknown.
        error: why it cannot be written, or "".
    """

    path: str
    free: int
    error: str = ""


def look(path: str) -> Folder:
    """Write a file into `path`, or into the folder it would be made in, and take it away again."""
    existing = Path(path).absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Folder(path, 0, error.strerror or str(error))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Folder(path, free)
    except OSError as error:
        return Folder(path, free, error.strerror or str(error))


def inductor_cache(environ: Mapping[str, str]) -> str:
    """Return the folder in which Inductor keeps what it compiled, as torch itself finds it."""
    if given := environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return os.path.abspath(given)
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return os.path.join(temporary(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def temporary() -> str:
    """Return the folder for temporary files, also where none can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"
