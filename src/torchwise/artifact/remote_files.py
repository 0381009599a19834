"""Files by URL: on a shared disk, in S3, or in any other store that fsspec can reach.

No reader sees half a file. An object store shows an object when all of it has arrived. Elsewhere a file is written
under another name first, and then moved.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from torchwise.artifact import package
from torchwise.errors import InputError, UnsupportedError

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
            extra = ": pip install 'torchwise[s3]'" if self._scheme in S3 else ""
            raise UnsupportedError(f"{self.url} cannot be used: {error}{extra}") from None
        except Exception as error:  # each store's library has its own errors for a URL that it cannot read
            raise InputError(f"{self.url} cannot be used: {error}") from None
        self._root: str = root.rstrip("/")

    def check(self) -> None:
        """Refuse a missing folder on a disk, as it would seem empty. Other stores have no folders.

        Raises:
            InputError: it is not there, or is a file.
        """
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
        raise UnsupportedError("fsspec is missing, which URLs need: pip install 'torchwise[remote]'") from None
