"""A PostgreSQL server as the store: its connections, the limits of its waits, and the mode of its transactions.

Every transaction has a connection of its own. So a fork, a restarted server or a pooler in between harms none.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text

from torchwise.store.sqlite import WRITING

LOCK_TIMEOUT_S = 30
"""Maximum wait of a writer for another's lock. After that the transaction is tried again, a bounded number of times."""

IDLE_LIMIT_S = 60
"""The server ends a transaction whose process does nothing for this long (it is stopped, or its host is gone)."""

_CONNECTION = {
    "connect_timeout": 10,
    # A network that swallows packets is noticed after about a minute, not after two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # No prepared statements: no query is frequent enough to gain, and poolers share connections that still have them.
    "prepare_threshold": None,
}
_LIMITS = (
    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'",
)


def postgres_engine(url: URL, timeout_s: float | None = None) -> Engine:
    """Return an engine for `url`, without connecting yet.

    Args:
        url: URL of the server. Its parameters override the defaults here.
        timeout_s: limit for connecting, and for the network's silence, or None for the default.

    Raises:
        ImportError: the driver is not installed.
    """
    usual = _CONNECTION if timeout_s is None else {**_CONNECTION, **_prompt(timeout_s)}
    given = {name: value for name, value in usual.items() if name not in url.query}
    engine = create_engine(url, poolclass=NullPool, connect_args=given, use_native_hstore=False)
    event.listen(engine, "begin", _begin)
    return engine


def options(*, writing: bool) -> dict[str, Any]:
    """Return the options of a transaction, regardless of the server's defaults.

    Several statements read one state. Once a writer has its lock, it sees the last writer's changes.
    """
    if writing:
        return {WRITING: True, "isolation_level": "READ COMMITTED"}
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def write_alone(connection: Connection, table: str) -> None:
    """Have other writers to `table` wait for this transaction's end, but not readers. A file's writers wait anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))


def _prompt(timeout_s: float) -> dict[str, Any]:
    return {"connect_timeout": round(timeout_s), "tcp_user_timeout": round(1000 * timeout_s)}


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql("; ".join(_LIMITS))
