"""The file with the compiled checks, in the user's cache folder, and the conditions for loading it.

Loading a library is to run it. So the file and its folders must be the user's own (or root's), and nobody else may
write to them. The file must be the one that was compiled: its SHA-256 is written next to it. A folder holds the code
for one build of PyTorch and Python. The compiler is not part of the name, as a machine that serves may have none.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

NAME = "torchwise_calls"
SOURCES = ("calls.cpp", "entry.h", "form.h", "recognizer.h", "replay.h", "served.h", "watch.h")
ROOT = 0
"""The user whose files all trust."""
NEWEST_PYTHON = (3, 12)
"""The last Python that counts all writes to a dict. Python 3.13 does not count those to an attribute of the object."""
HERE = Path(__file__).parent


class UnusableError(Exception):
    """There are no compiled checks for this process. Its text says why, as the rest of "as ..."."""


class Library:
    """The library for this Python and this PyTorch.

    Args:
        root: the folder of all such libraries, by default in the user's cache folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        if root is None:
            from platformdirs import user_cache_dir

            root = Path(user_cache_dir("torchwise"), "native")
        self.root = root
        self.folder = root / _make_key()
        self.file = self.folder / f"{NAME}.so"
        self.digest_file = self.folder / f"{NAME}.sha256"

    def find_obstacle(self) -> str | None:
        """Return why this process can have no compiled checks, whether or not there is a library."""
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            return "they rely on the lock of the interpreter, which this free-threaded Python does not have"
        if sys.implementation.name != "cpython" or sys.version_info[:2] > NEWEST_PYTHON:
            return "they need CPython 3.11 or 3.12"
        if os.name != "posix":
            return "they are compiled on Linux and macOS alone"
        return None

    def load(self) -> ModuleType:
        """Load it.

        Raises:
            UnusableError: it was not compiled, or it may not be trusted.
        """
        if obstacle := self.find_obstacle():
            raise UnusableError(obstacle)
        if not self.file.is_file():
            raise UnusableError(f"they are not compiled: {self.file} does not exist (torchwise doctor compiles them)")
        if problem := self.find_distrust():
            raise UnusableError(problem)
        return load_file(self.file)

    def find_distrust(self) -> str | None:
        """Return why the library may not be loaded, or None."""
        if problem := _find_distrust(self._list_trusted()):
            return problem
        if self.read_digest() != hashlib.sha256(self.file.read_bytes()).hexdigest():
            return f"{self.file} is not the file that was compiled: delete it, and torchwise doctor compiles it again"
        return None

    def find_distrust_of_folders(self) -> str | None:
        """Return why no library in these folders may be loaded, or None."""
        return _find_distrust((self.root.parent, self.root))

    def _list_trusted(self) -> Iterator[Path]:
        yield from (self.root.parent, self.root, self.folder, self.file, self.digest_file)

    def read_digest(self) -> str:
        """Return the SHA-256 that was written after compilation, or "" if none was."""
        try:
            return self.digest_file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _find_distrust(paths: Iterable[Path]) -> str | None:
    """Return why code in the last of some folders and files may be somebody else's, or None."""
    for path in paths:
        try:
            found = path.lstat()
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if stat.S_ISLNK(found.st_mode):
            return f"{path} is a link: delete it, and torchwise doctor compiles the checks again"
        if found.st_uid not in (os.geteuid(), ROOT):
            return f"{path} belongs to user {found.st_uid}, and not to you ({os.geteuid()})"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to {path}: chmod go-w {path}"
    return None


def import_extension(name: str, file: Path) -> ModuleType:
    """Import a compiled module of this name from a file."""
    loader = importlib.machinery.ExtensionFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_file(file: Path) -> ModuleType:
    """Load the compiled checks in a file, which must be trusted, and have them find the C++ tensor in a tensor."""
    import torch  # whose libraries this one calls

    module = import_extension(NAME, file)
    samples = [torch.empty(size) for size in (1, 2)]
    module.configure(torch.Tensor, tuple((sample, sample._cdata) for sample in samples))
    return module


def _make_key() -> str:
    """Return the name of the folder for this source, Python and PyTorch, without importing torch."""
    parts = [(HERE / name).read_bytes() for name in SOURCES]
    facts = (sysconfig.get_config_var("SOABI"), sys.version, platform.machine(), find_torch()[1])
    return hashlib.sha256(b"\0".join([*parts, repr(facts).encode()])).hexdigest()[:24]


def find_torch() -> tuple[Path, str]:
    """Return PyTorch's folder, and its version with the commit that it was built from, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return Path(), ""
    folder = Path(found.submodule_search_locations[0])
    version = folder / "version.py"
    return folder, version.read_text() if version.is_file() else ""
