"""Tell the identity of a target without loading it, as long as everything that loading it read is as it was.

A worker that loads a target records each file and folder that Python reads meanwhile (`sys.addaudithook`), and writes
their digests with the identity that it found. A later search compares the digests, which takes milliseconds. The name
of that file depends on the target, its device, mode and seed, the folder, and the environment variables. Of a file that
is only looked for, as by `os.path.exists`, it is compared whether it exists, and whether it is a folder.

A digest may not say everything. So no file is written if loading used a network, a database or another process, if
a file was changed meanwhile, or for a model that C++ reads from its file (TorchScript, exported graphs). Then the next
search loads and profiles the model again, as it does for every difference.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from torchwise import __version__
from torchwise.errors import InputError, StorageError
from torchwise.parsing import parse_json
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.files import write_atomically
from torchwise.trial import preload

FORMAT = 3
OPAQUE = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.startfile"),
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "sqlite3.connect", "urllib.Request"),
)
"""Audit events of what no digest of files can show."""
VARYING = ("_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST")
"""Environment variables that differ between two commands of one shell."""
LOOKS = ("stat", "lstat", "access")
"""Functions of `os` by which `os.path` and `pathlib` look for a file."""
SUPPORTED: tuple[set[Any], ...] = (
    os.supports_dir_fd,
    os.supports_fd,
    os.supports_follow_symlinks,
    os.supports_effective_ids,
)
"""The functions of `os` that have some option, by which other code chooses."""
MAX_HASHED = 2**22
"""Bytes of a file up to which its contents are compared. A larger one is compared by its size and date."""
SETTLED_S = 1.0
"""Age of a file from which its date tells whether it was changed during loading: some file systems count seconds."""
_VIRTUAL = ("/proc/", "/sys/", "/dev/")


def reads_file(workload: WorkloadSpec) -> Path:
    """Return the file for the reads of loading a target from this folder with these environment variables."""
    from platformdirs import user_cache_dir

    variables = sorted((name, value) for name, value in os.environ.items() if name not in VARYING)
    # All of a request on which the identity depends, and all by which a study is another one.
    spec = (workload.target, workload.device, workload.mode, workload.seed, workload.batch)
    rules = (workload.list_rules(), workload.latency_limit is None)
    facts = (FORMAT, __version__, sys.version, sys.prefix, os.getcwd(), tuple(sys.path), spec, rules, variables)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    return Path(user_cache_dir("torchwise"), "targets", f"{digest}.json")


def recall_identity(file: Path) -> str | None:
    """Return the identity of the target whose reads a file holds, or None if anything differs or is unknown."""
    try:
        kept = parse_json(file.read_bytes())
        reads, looks, identity = dict(kept["reads"]), dict(kept["looks"]), str(kept["identity"])
    except (OSError, InputError, KeyError, TypeError, ValueError):
        return None
    is_same = all(_digest(path) == digest for path, digest in reads.items())
    return identity if is_same and all(_kind_of(path) == kind for path, kind in looks.items()) else None


class LoadingReads:
    """The files and folders that this process reads while it loads a target."""

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._looked_for: dict[str, str] = {}  # maps a path to what was there
        self._is_open = False
        self._is_complete = True
        self._start = time.time()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record what is read. An audit hook stays for as long as the process, so this is for a worker."""
        sys.addaudithook(self._hear)
        self._is_open = True
        try:
            with ExitStack() as stack:
                for name in LOOKS:  # which no audit event tells of
                    former = getattr(os, name)
                    noted = self._note_looks(former)
                    setattr(os, name, noted)
                    stack.callback(setattr, os, name, former)
                    for functions in (one for one in SUPPORTED if former in one):  # which shutil asks, for one
                        functions.add(noted)
                        stack.callback(functions.discard, noted)
                yield
        finally:
            self._is_open = False

    def _note_looks(self, look: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(look)
        def noted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)) and kwargs.get("dir_fd") is None:
                name = os.path.abspath(os.fsdecode(path))
                if name not in self._looked_for:
                    self._looked_for[name] = ""  # as the next line looks as well
                    self._looked_for[name] = _kind_of(name)  # at once, as loading may make or remove it
            return look(path, *args, **kwargs)

        return noted

    def keep(self, file: str, identity: str) -> None:
        """Write the digests with an identity, unless something was read that they do not show."""
        own = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "torchwise" and m]
        # The server imported these for the worker, so no event tells of them.
        files = [getattr(module, "__file__", None) for module in (*own, *preload.imported)]
        paths = [path for path in dict.fromkeys([*self._paths, *filter(None, files)]) if not path.startswith(_VIRTUAL)]
        if not self._is_complete or any(_changed_at(path) > self._start - SETTLED_S for path in paths):
            return
        looks = {path: kind for path, kind in self._looked_for.items() if path not in self._paths}
        looks = {path: kind for path, kind in looks.items() if not path.startswith(_VIRTUAL)}
        reads = {path: _digest(path) for path in paths}
        text = json.dumps({"identity": identity, "reads": reads, "looks": looks})
        with suppress(OSError, StorageError):  # the next search profiles the model again
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(text, file)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_open:
            return
        if event in OPAQUE:
            self._is_complete = False
        elif event == "open" and _is_read(*args[1:3]):
            self._add(args[0])
        elif event == "import" and len(args) > 1:
            self._add(args[1])
        elif event == "ctypes.dlopen" and args[0] and os.sep in str(args[0]):
            self._add(args[0])
        elif event in ("os.listdir", "os.scandir") and "importlib" not in sys._getframe(1).f_code.co_filename:
            self._add(args[0] or ".")

    def _add(self, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))
            if name.endswith(".pyc"):
                with suppress(ValueError):  # a .pyc beside its source, which has no other one
                    name = importlib.util.source_from_cache(name)
            self._paths.setdefault(name)


def _is_read(mode: Any, flags: Any) -> bool:
    """Return whether a file was opened to be read: what is written says nothing of the target."""
    if isinstance(mode, str):
        return not set(mode) & set("wax+")
    return not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR))


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _kind_of(path: str) -> str:
    """Return what is at a path."""
    if os.path.isdir(path):
        return "folder"
    return "file" if os.path.exists(path) else ""


def _digest(path: str) -> str:
    """Return the digest of a file's contents or of a folder's names, or "" if there is neither."""
    try:
        if os.path.isdir(path):
            return hashlib.sha256(repr(sorted(os.listdir(path))).encode()).hexdigest()[:16]
        found = os.stat(path)
        if found.st_size > MAX_HASHED:
            return f"{found.st_size} {found.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
