"""Files by URL: on a shared disk, in S3, or in any other store that fsspec can reach.

No reader sees half a file. An object store shows an object when all of it has arrived. Elsewhere a file is written
under another name first, and then moved.

Also here: One folder for a fleet. Each machine reads only the subfolder of the artifacts that it can use.

::

    s3://bucket/models/
        0.1.0-1f0c6f4fd2b4/                             Torchwise, and the fingerprint of machine and software
            5c1f3ab09d7e4a21-90b1d0c7e6f25a38.tw        the model's structure, and its identity with its inputs
            5c1f3ab09d7e4a21-90b1d0c7e6f25a38.tw.used   when it was last saved or loaded

There is no index that could disagree with the files. If two processes save the same at once, the later wins, and both
files are whole.

The least recently used artifact is removed first. An object store only knows the time of writing. So each use writes a
marker of one byte, if the reader may write.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchwise import __version__, environment
from torchwise.artifact import package
from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.records import Decision

SUFFIX = ".tw"
ARRIVES_WHOLE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")
S3 = ("s3", "s3a")
DISK = ("file", "local")


def is_url(path: str | Path) -> bool:
    """Return whether this is a URL, and not a path."""
    return isinstance(path, str) and "://" in path


def is_folder(path: str | Path) -> bool:
    """Return whether this is the URL of a folder, and not of one artifact."""
    return is_url(path) and not str(path).endswith(SUFFIX)


def hide_password(path: str | Path) -> str:
    """Return a path or URL for messages, without any password in it."""
    return re.sub(r"://[^/]*@", "://", str(path))


class RemoteFolder:
    """A folder by its URL. Its files are named relative to it.

    Every method raises InputError, with the URL and the cause, if the store refuses or cannot be reached.

    Raises:
        InputError: the URL cannot be used.
        UnsupportedError: a library is missing. The message names it.
    """

    def __init__(self, url: str) -> None:
        if not is_url(url):
            here = Path(url).absolute().as_uri()
            raise InputError(f"url is {url!r}, but must be a URL, such as s3://bucket/models or {here}")
        self.url = hide_password(url).rstrip("/")
        self._scheme = url.partition("://")[0]
        fsspec = _fsspec()
        try:
            self._store, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            extra = f": {suggest_extra('s3')}" if self._scheme in S3 else ""
            raise UnsupportedError(f"{self.url} cannot be used: {error}{extra}") from None
        except Exception as error:  # each store's library has its own errors for a URL that it cannot read
            raise InputError(f"{self.url} cannot be used: {error}") from None
        self._root: str = root.rstrip("/")

    def check(self) -> None:
        """Refuse a missing folder on a disk, as it would seem empty. Other stores have no folders."""
        if self._scheme in DISK and not Path(self._root).is_dir():
            what = "it is a file" if Path(self._root).exists() else "there is no such folder"
            raise InputError(f"{self.url} cannot be listed: {what}")

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""
        with self._reporting_errors(name, "read"):
            return bytes(self._store.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """Write a file. It replaces an old one when all of it is written."""
        path = self._path(name)
        with self._reporting_errors(name, "written"):
            if self._scheme in ARRIVES_WHOLE:
                self._store.pipe_file(path, data)
                return
            folder, _, last = path.rpartition("/")
            self._store.makedirs(folder, exist_ok=True)
            if self._scheme in DISK:
                package.put(Path(path), data)
                return
            temporary = f"{folder}/.{last}.{uuid.uuid4().hex}"
            self._store.pipe_file(temporary, data)
            self._store.mv(temporary, path)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of all files in the folder, or in one within it, by name, or none if there is no folder."""
        path = self._path(folder).rstrip("/")
        with self._reporting_errors(folder, "listed"):
            self._store.invalidate_cache()  # to list files of other writers, too
            try:
                found = self._store.find(path, detail=True)
            except FileNotFoundError:
                return {}
        return {name[len(self._root) + 1 :]: int(entry["size"]) for name, entry in found.items()}

    def modification_time(self, name: str) -> datetime | None:
        """Return when a file was written, by the store's clock, or None if it is gone."""
        with self._reporting_errors(name, "found"):
            try:
                found: datetime = self._store.modified(self._path(name))
            except FileNotFoundError:
                return None
        return found

    def remove(self, name: str) -> None:
        """Remove a file, which may be gone already."""
        with self._reporting_errors(name, "removed"), contextlib.suppress(FileNotFoundError):
            self._store.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _reporting_errors(self, name: str, what: str) -> Iterator[None]:
        where = f"{self.url}/{name}".rstrip("/")
        try:
            yield
        except InputError:
            raise
        except FileNotFoundError:
            raise InputError(f"{where} cannot be {what}: it, or its folder, is missing") from None
        except Exception as error:  # each store's library has its own errors: the cause is named
            raise InputError(
                f"{where} cannot be {what} ({type(error).__name__}: {error}): check the address, the credentials and "
                "the network"
            ) from error


def _fsspec() -> Any:
    try:
        return importlib.import_module("fsspec")
    except ImportError:
        raise UnsupportedError(f"fsspec is missing, which URLs need: {suggest_extra('remote')}") from None


logger = logging.getLogger("torchwise")

USED = ".used"
ARTIFACT_FILE = re.compile(r"(?P<artifact>[\w.+-]+-[0-9a-f]{12}/\.?\w+-\w+\.tw)(\.\w+)*")
"""An artifact, its marker, and the remains of a writer that was killed. Nothing else is ever removed."""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One artifact in a folder.

    Attributes:
        used: when it was last saved or loaded, or None if it was removed meanwhile.
        device: "cuda" or "cpu" if it is for this machine and its software, else None.
    """

    url: str
    size: int
    used: datetime | None
    device: str | None


class Folder:
    """Artifacts in a `RemoteFolder`. `find` and `save` name them relative to it. Raises as `RemoteFolder` does."""

    def __init__(self, url: str) -> None:
        self.place = RemoteFolder(url)

    def prepare(self, decision: Decision) -> None:
        """Check that an artifact can be written, before minutes are spent on making it."""
        self.place.write(name_of(decision) + USED, b"\n")

    def save(self, decision: Decision, data: bytes, limit_bytes: int | None = None) -> str:
        """Write an artifact, then remove others until all of them together keep to the limit. Return its name."""
        name = name_of(decision)
        self.place.write(name, data)
        self.place.write(name + USED, b"\n")
        if limit_bytes is not None:
            self.evict(limit_bytes, name)
        return name

    def find(self, device: str, structure: str = "") -> list[str]:
        """Name the artifacts for this machine and its software, newest first, of one model or of all."""
        home = _home(device)
        begins = f"{home}/{structure}-" if structure else f"{home}/"
        names = [name for name in self.place.sizes(home) if name.startswith(begins) and name.endswith(SUFFIX)]
        return (
            sorted(names, key=lambda name: self.place.modification_time(name) or NEVER, reverse=True)
            if len(names) > 1
            else names
        )

    def entries(self) -> list[Entry]:
        """List every artifact for any machine, the most recently used first."""
        here = {_home(device): device for device in ("cpu", environment.default_device())}
        found = [
            Entry(f"{self.place.url}/{name}", size, self._last_use(name), here.get(name.partition("/")[0]))
            for name, size in self.place.sizes().items()
            if name.endswith(SUFFIX) and ARTIFACT_FILE.fullmatch(name) and "/." not in name
        ]
        return sorted(found, key=lambda entry: entry.used or NEVER, reverse=True)

    def mark(self, name: str) -> None:
        """Leave a mark that an artifact was used."""
        try:
            self.place.write(name + USED, b"\n")
        except InputError as error:  # a user who may only read the folder still can
            logger.debug("torchwise: %s", error)

    def evict(self, limit_bytes: int, keep: str) -> None:
        """Remove the least recently used artifacts until the rest keeps to a limit. `keep` stays at any size.

        Other processes that evict meanwhile remove the same artifacts. An artifact that is saved or loaded at that very
        moment may be removed, too. Then it is compiled again.
        """
        artifacts: dict[str, dict[str, int]] = defaultdict(dict)
        for name, size in self.place.sizes().items():
            if match := ARTIFACT_FILE.fullmatch(name):
                # A file being written shares the marker of its final name. That marker is new, so other artifacts are
                # removed first.
                artifacts[match["artifact"].replace("/.", "/")][name] = size
        total = sum(sum(files.values()) for files in artifacts.values())
        if total <= limit_bytes:
            return
        for artifact in sorted(artifacts.keys() - {keep}, key=lambda name: self._last_use(name) or NEVER):
            if total <= limit_bytes:
                return
            for name in artifacts[artifact]:
                self.place.remove(name)
            total -= sum(artifacts[artifact].values())

    def _last_use(self, artifact: str) -> datetime | None:
        return self.place.modification_time(artifact + USED) or self.place.modification_time(artifact)


def name_of(decision: Decision) -> str:
    """Return the location of a decision's artifact: it names everything that must be equal for use.

    Raises:
        InputError: the decision's digests are invalid, so that they could lead elsewhere.
    """
    name = f"{_home(decision.workload.device)}/{decision.structure}-{decision.identity}{SUFFIX}"
    if not ARTIFACT_FILE.fullmatch(name):
        raise InputError(
            f"structure and identity are {decision.structure!r} and {decision.identity!r}, but must be digests"
        )
    return name


def _home(device: str) -> str:
    return f"{__version__}-{environment.detect(device).fingerprint}"
