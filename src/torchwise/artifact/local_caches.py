"""The caches of compiled code on this machine: Inductor's, Triton's and Torchwise's own, their sizes, and less of them.

A cache is only looked into below its folder. Links are neither followed nor counted with what they point to.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchwise._torch.inductor import DEFAULT_CACHE_DIR
from torchwise.errors import InputError, did_you_mean
from torchwise.store.location import default_url, file_of

NAMES = {
    "inductor": re.compile(
        r"[a-z2-7]{2}|[a-z2-7]{52}|tmp[a-z0-9_]{8}(\.py)?|fxgraph|aotautograd|triton|locks|cache|dynamo|gcc|bisect|"
        r"precompiled_headers|autoheuristic|unhashed_kernel_inputs|memoizer_cache\.(json|lock)|aoti_eager|"
        r"torch_cutlass|cutedsl_compile_cache|configs_\w+\.json|torchwise_rows"
    ),
    "triton": re.compile("[A-Z2-7]{52}|[0-9a-f]{64}"),
}
"""The names that compilers give to what lies directly in their cache. All else in its folder is somebody's."""

MAX_FOREIGN = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder of a cache, with the files that lie directly in it. It is removed as a whole.

    Attributes:
        path: the folder.
        files: the files and links in it.
        size: their bytes.
        used: seconds since the epoch of the latest use of one of them.
    """

    path: Path
    files: tuple[Path, ...]
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class LocalCache:
    """One cache of this user on this machine.

    Attributes:
        name: "inductor", "triton" or "torchwise".
        path: its folder, which need not exist.
        variable: environment variable that moves it, or "" if none does.
        contents: its contents, in words.
    """

    name: str
    path: Path
    variable: str
    contents: str

    def entries(self) -> tuple[Entry, ...]:
        """Return its folders with files, the least recently used first."""
        return tuple(sorted(_walk(self.path), key=lambda entry: entry.used))

    def choose(self, limit_bytes: int = 0) -> tuple[Entry, ...]:
        """Return the least recently used entries without which the cache is no larger than the limit.

        Raises:
            InputError: the folder is one that also holds other things, or a link.
        """
        self._check_folder()
        entries = self.entries()
        left, chosen = sum(entry.size for entry in entries), list[Entry]()
        for entry in entries:
            if limit_bytes and left <= limit_bytes:
                break
            chosen.append(entry)
            left -= entry.size
        return tuple(chosen)

    def remove(self, entries: tuple[Entry, ...]) -> int:
        """Delete the files of entries, and the folders that this leaves empty. Return the bytes that are free now.

        A file that cannot be deleted, such as one of another user, stays.
        """
        self._check_folder()
        freed = 0
        for entry in entries:
            for file in entry.files:
                with contextlib.suppress(OSError):
                    size = file.lstat().st_size
                    file.unlink()
                    freed += size
        for folder, _, _ in os.walk(self.path, topdown=False):
            if Path(folder) != self.path:
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()
        return freed

    def _check_folder(self) -> None:
        """Refuse a folder in which a variable has put the cache together with other things."""
        if self.path.is_symlink():
            raise InputError(f"{self.path} is a link, which is not followed: delete in {self.path.resolve()} yourself")
        way_out = f"so nothing in it is deleted: let {self.variable} name a folder of its own"
        if any(other.resolve().is_relative_to(self.path.resolve()) for other in self._list_others()):
            raise InputError(f"{self.path} holds more than a cache, {way_out}")
        known = NAMES.get(self.name)
        if known and self.path.is_dir():
            foreign = sorted(name for name in os.listdir(self.path) if not known.fullmatch(name))
            if foreign:
                more = ", and more" if len(foreign) > MAX_FOREIGN else ""
                raise InputError(
                    f"{self.path} has {', '.join(foreign[:MAX_FOREIGN])}{more}, which no compiler made, {way_out}"
                )

    def _list_others(self) -> list[Path]:
        """Return the folders and the store that must not lie in this cache."""
        from platformdirs import user_cache_dir, user_data_dir

        others = [Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix)]
        others += [Path(user_cache_dir()), Path(user_data_dir()), file_of(default_url()) or Path.home()]
        return others + [cache.path for cache in list_caches() if cache.name != self.name]


def list_caches() -> tuple[LocalCache, ...]:
    """Return the caches that programs of this user and this environment use."""
    from platformdirs import user_cache_dir

    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or DEFAULT_CACHE_DIR.get()()
    triton = os.environ.get("TRITON_CACHE_DIR")
    if not triton:
        triton = str(Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache"))
    return (
        LocalCache(
            "inductor",
            Path(inductor).absolute(),
            "TORCHINDUCTOR_CACHE_DIR",
            "graphs and kernels that torch.compile made, Triton's of its own included",
        ),
        LocalCache("triton", Path(triton).absolute(), "TRITON_CACHE_DIR", "kernels that programs write in Triton"),
        LocalCache(
            "torchwise",
            Path(user_cache_dir("torchwise")).absolute(),
            "XDG_CACHE_HOME",
            "what loading a target reads, so that a decision is found at once; studies are not in it",
        ),
    )


def find_caches(names: list[str] | None) -> tuple[LocalCache, ...]:
    """Return the caches of these names, or all if none is given.

    Raises:
        InputError: a name is unknown.
    """
    known = {cache.name: cache for cache in list_caches()}
    for name in names or ():
        if name not in known:
            raise InputError(f"cache is {name!r}, but must be one of {', '.join(known)}{did_you_mean(name, known)}")
    return tuple(cache for cache in known.values() if not names or cache.name in names)


def _walk(folder: Path) -> Iterator[Entry]:
    for path, _, _ in os.walk(folder, followlinks=False):
        files, size, used = list[Path](), 0, 0.0
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as found:  # another program may delete it
            for one in found:
                with contextlib.suppress(FileNotFoundError):  # a program that compiles replaces files meanwhile
                    about = one.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(about.st_mode):
                        files.append(Path(one.path))
                        size, used = size + about.st_size, max(used, about.st_atime, about.st_mtime)
        if files:
            yield Entry(Path(path), tuple(files), size, used)
