"""A SQLite file as the store: its permissions, its connections, its transactions.

It uses a write-ahead log, so that readers never wait. With `synchronous=FULL`, committed data survive a power failure.
With `BEGIN IMMEDIATE`, a writer waits for the lock at the start, and never fails later.
"""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from torchwise.errors import StorageError
from torchwise.store.db_errors import explain

BUSY_TIMEOUT_S = 30.0
WRITING = "torchwise_writing"
"""Execution option of a connection whose transactions write."""


def sqlite_engine(path: Path, timeout_s: float | None = None) -> Engine:
    """Return an engine that opens a connection for every transaction, so that it is safe after a fork.

    Each connection waits for a lock for `timeout_s`, or `BUSY_TIMEOUT_S` by default.
    """
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, creator=partial(connect, path, timeout_s), poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    return engine


def prepare(path: Path) -> None:
    """Check that the file at `path` is readable, and create an empty one if needed.

    Raises:
        StorageError: the path is a folder, or a permission is missing.
    """
    if path.is_dir():
        raise StorageError(f"store {path} is a folder, but must be a file")
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    except OSError as error:
        raise StorageError(f"store {path} cannot be created: {error.strerror}; give another with --store") from error
    if not _may(path, os.R_OK):
        raise StorageError(f"store {path} is not readable for this user; change its mode or give another with --store")


def is_writable(path: Path) -> bool:
    """Whether this user may write the file, and create files in its folder, as the write-ahead log needs."""
    return _may(path, os.W_OK) and _may(path.parent, os.W_OK)


def connect(path: Path, timeout_s: float | None = None) -> sqlite3.Connection:
    """Open an existing file for writing, or for reading if writing is not permitted."""
    if is_writable(path):
        connection = _open(path, "mode=rw", timeout_s)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection
    connection = _open(path, "mode=ro", timeout_s)
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        connection.close()
        if Path(f"{path}-wal").exists():  # reading without it would return an older state
            raise StorageError(
                f"store {path} is read-only, and {path.name}-wal has changes that are not merged yet ({error}); "
                "open it once with write permission"
            ) from error
        return _open(
            path, "mode=ro&immutable=1", timeout_s
        )  # no process is writing, and the log's index cannot be created
    return connection


def use_write_ahead_log(path: Path, place: str) -> None:
    """Set the file's journal mode, which it keeps. If the file system lacks shared memory, the mode stays as it is."""
    try:
        connection = connect(path)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise explain(error, place) from error


def _open(path: Path, mode: str, timeout_s: float | None) -> sqlite3.Connection:
    """Open without the driver's own transactions, as SQLAlchemy documents for a custom BEGIN."""
    timeout = BUSY_TIMEOUT_S if timeout_s is None else timeout_s
    return sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=timeout, isolation_level=None)


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _may(path: Path, permission: int) -> bool:
    return os.access(path, permission, effective_ids=os.access in os.supports_effective_ids)
