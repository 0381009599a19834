"""The engines of a file and of a server: their connections, timeouts, and the mode of their transactions.

Every transaction has its own connection. So forks, restarted servers and connection poolers do no harm.
"""

from __future__ import annotations

import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text

from torchwise.errors import StorageError
from torchwise.store.db_errors import explain

BUSY_TIMEOUT_S = 30.0
WRITING = "torchwise_writing"
"""Execution option of a connection whose transactions write."""
LOCK_TIMEOUT_S = 30
"""Maximum wait in seconds for a lock. Afterwards the transaction is repeated, a limited number of times."""

IDLE_LIMIT_S = 60
"""Seconds after which the server ends an idle transaction, such as that of a stopped process or a lost host."""

_CONNECTION = {
    "connect_timeout": 10,
    # A network that drops packets is detected after about a minute, not after two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # No prepared statements: no query is frequent enough to benefit, and they conflict with connection poolers.
    "prepare_threshold": None,
}
_LIMITS = (
    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'",
)


def sqlite_engine(path: Path, timeout_s: float | None = None) -> Engine:
    """Return an engine for a file, whose connections wait for a lock for `timeout_s`, or `BUSY_TIMEOUT_S` by default.

    The file has a write-ahead log, so that readers never wait. With `synchronous=FULL`, committed data survive a power
    failure. With `BEGIN IMMEDIATE`, a writer waits for the lock at the start, and never fails later.
    """
    url = URL.create("sqlite", database=str(path))
    engine = create_engine(url, creator=partial(connect, path, timeout_s), poolclass=NullPool)
    event.listen(engine, "begin", _begin_in_file)
    return engine


def prepare_file(path: Path) -> None:
    """Check that the file at `path` is readable, and create an empty one if needed."""
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


def _begin_in_file(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _may(path: Path, permission: int) -> bool:
    return os.access(path, permission, effective_ids=os.access in os.supports_effective_ids)


def postgres_engine(url: URL, timeout_s: float | None = None) -> Engine:
    """Return an engine for `url`, without connecting yet. Parameters in `url` override the defaults here.

    Args:
        timeout_s: time limit for connecting and for network silence, or None for the default.

    Raises:
        ImportError: the driver is not installed.
    """
    settings = _CONNECTION if timeout_s is None else {**_CONNECTION, **_prompt(timeout_s)}
    arguments = {name: value for name, value in settings.items() if name not in url.query}
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments, use_native_hstore=False)
    event.listen(engine, "begin", _begin_on_server)
    return engine


def server_options(*, writing: bool) -> dict[str, Any]:
    """Return the options of a transaction, regardless of the server's defaults.

    All statements of a reader see the same state. A writer sees the changes of the last writer once it has its lock.
    """
    if writing:
        return {WRITING: True, "isolation_level": "READ COMMITTED"}
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def write_alone(connection: Connection, table: str) -> None:
    """Let other writers to `table`, but not readers, wait for this transaction. In SQLite, writers wait anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))


def _prompt(timeout_s: float) -> dict[str, Any]:
    return {"connect_timeout": round(timeout_s), "tcp_user_timeout": round(1000 * timeout_s)}


def _begin_on_server(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql("; ".join(_LIMITS))
