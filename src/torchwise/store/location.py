"""Location of the store, and a look into its file that loads no SQLAlchemy, for every start of a program."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise.errors import StorageError

if TYPE_CHECKING:
    from sqlalchemy import URL

VARIABLE = "TORCHWISE_STORE"
RULE = "must be a path ending in .db, a sqlite:///PATH or a postgresql://USER@HOST/DATABASE URL"

_SQLITE = ("sqlite", "sqlite+pysqlite")
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_PLACES = ("host", "port", "service")  # parameters of psycopg that are shown. Others may be secrets


def default_url() -> str:
    """Return the environment's TORCHWISE_STORE, or else a SQLite file in the user's data folder."""
    if url := os.environ.get(VARIABLE):
        return url
    from platformdirs import user_data_dir

    return f"sqlite:///{Path(user_data_dir('torchwise')) / 'torchwise.db'}"


def locate(text: str) -> URL:
    """Return the database URL of `text`, a URL or a path ending in .db. Paths become absolute."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, separator, _ = text.partition("://")
    if not separator:
        if not text.endswith(".db"):
            raise StorageError(f"store is {text!r}, but {RULE}")
        return _file(text)
    if scheme not in _SQLITE + _POSTGRES:
        raise StorageError(f"store has the scheme {scheme!r}, but {RULE}")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the message does not repeat the text, which may hold a password
        raise StorageError(f"store is a malformed {scheme}:// URL, but {RULE}") from None
    if scheme in _POSTGRES:
        if "@" in f"{url.host}{url.database}":  # nor the part after the first @ of a password
            raise StorageError(f"store is a {scheme}:// URL with several @: write an @ in the password as %40")
        return url.set(drivername="postgresql+psycopg")
    if not url.database or url.database == ":memory:":
        raise StorageError(f"store is {text!r}, which other processes cannot read, but {RULE}")
    if url.host or url.query:
        raise StorageError(f"store is {text!r}, but a sqlite URL has three slashes, a path, and no parameters")
    return _file(url.database)


def place_of(text: str) -> str:
    """Return the store of `text` for messages: an absolute path, or a server's URL without its password."""
    return str(file_of(text) or hide_password(locate(text)))


def file_of(text: str) -> Path | None:
    """Return the file of `text`, which need not exist, or None for a server's URL."""
    scheme, separator, path = text.partition("://")
    if separator and scheme not in _SQLITE:
        return None
    return Path(path.removeprefix("/") if separator else text).expanduser().absolute()


def make_absolute(text: str) -> str:
    """Return a store that means the same from any folder. A text that names no file stays as it is."""
    scheme, separator, path = text.partition("://")
    if not separator:
        return str(Path(text).expanduser().absolute())
    if scheme not in _SQLITE or not path.startswith("/") or path in ("/", "/:memory:") or "?" in path:
        return text
    return f"{scheme}:///{file_of(text)}"


def check_exists(url: URL) -> None:
    """Refuse a missing file. Opening a store checks its server."""
    if url.drivername == "sqlite" and not Path(url.database or "").exists():
        raise StorageError(
            f"store {url.database} does not exist: give another with --store, or create it by `torchwise tune` "
            "or `torchwise run --tune`"
        )


def hide_password(url: URL) -> str:
    """Return a server's URL for messages, without its password, and only with parameters of the location."""
    query = {name: value for name, value in url.query.items() if name in _PLACES}
    return url.set(drivername="postgresql", query=query).render_as_string(hide_password=True)


def _file(path: str) -> URL:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(Path(path).expanduser().absolute()))


def may_have_approvals(store: str | None, target: str) -> bool:
    """Return whether a store may hold an approval for `target`, within a millisecond for SQLite.

    Args:
        store: as in `open_storage`, or None for the default, which need not exist.
    """
    file = file_of(store or default_url())
    if file is None:
        return True
    if not file.exists():
        return store is not None  # opening the store reports the missing file
    return not _holds_none(file, target)


def _holds_none(file: Path, target: str) -> bool:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0.1)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'torchwise_rulings'").fetchall():
                return True
            query = "SELECT 1 FROM torchwise_rulings WHERE target = ? LIMIT 1"
            return not connection.execute(query, (target,)).fetchall()
    except sqlite3.Error:  # a real read of the store reports the problem
        return False
