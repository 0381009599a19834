"""Check folders that compilation writes to: their permissions and free space."""

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
    """A folder that compilation writes to.

    Attributes:
        path: its path, which may not exist yet.
        free: free bytes, or 0 if unknown.
        error: why it is not writable, or "".
    """

    path: str
    free: int
    error: str = ""


def check_folder(path: str) -> Folder:
    """Test by a temporary file whether `path`, or its first existing parent, is writable."""
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
    """Return the folder of Inductor's compile cache, as torch itself finds it."""
    if folder := environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return os.path.abspath(folder)
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return os.path.join(temporary(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def temporary() -> str:
    """Return the folder for temporary files, even if none is writable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"
