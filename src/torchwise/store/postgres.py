"""A PostgreSQL server as the store: its connections, the limits of its waits, and how a transaction runs.

Every transaction has a connection of its own, so that a fork, a restarted server or a pooler in between harms none.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text

from torchwise.store.sqlite import WRITING

LOCK_TIMEOUT_S = 30
"""A writer waits no longer for another's lock; the transaction is then tried again, a bounded number of times."""

IDLE_LIMIT_S = 60
"""The server ends a transaction whose process does nothing for so long (it is stopped, or its host is gone)."""

_CONNECTION = {
    "connect_timeout": 10,
    # A network that swallows packets is noticed after about a minute, not after two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # Nothing is asked often enough to gain from them, and poolers share connections that still have them.
    "prepare_threshold": None,
}
_LIMITS = (
    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'",
)


def postgres_engine(url: URL, timeout_s: float | None = None) -> Engine:
    """Return an engine for `url`; nothing is connected yet.

    Args:
        url: of the server; its parameters go before what is usual here.
        timeout_s: how long connecting may take, and the network may say nothing; None for what is usual.

    Raises:
        ImportError: the driver is not installed.
    """
    usual = _CONNECTION if timeout_s is None else {**_CONNECTION, **_prompt(timeout_s)}
    given = {name: value for name, value in usual.items() if name not in url.query}
    engine = create_engine(url, poolclass=NullPool, connect_args=given, use_native_hstore=False)
    event.listen(engine, "begin", _begin)
    return engine


def options(*, writing: bool) -> dict[str, Any]:
    """Return how a transaction is to run, whatever the server's defaults.

    What several statements read is one state. A writer sees, once it has its lock, what the last one wrote.
    """
    if writing:
        return {WRITING: True, "isolation_level": "READ COMMITTED"}
    return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


def write_alone(connection: Connection, table: str) -> None:
    """Have other writers to `table` wait for this transaction's end; readers do not. A file's writers wait anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))


def _prompt(timeout_s: float) -> dict[str, Any]:
    return {"connect_timeout": round(timeout_s), "tcp_user_timeout": round(1000 * timeout_s)}


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql("; ".join(_LIMITS))
