"""A PostgreSQL server as the store: its connections, timeouts, and the mode of its transactions.

Every transaction has its own connection. So forks, restarted servers and connection poolers do no harm.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text

from torchwise.store.sqlite import WRITING

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


def postgres_engine(url: URL, timeout_s: float | None = None) -> Engine:
    """Return an engine for `url`, without connecting yet.

    Args:
        url: URL of the server. Its parameters override the defaults here.
        timeout_s: time limit for connecting and for network silence, or None for the default.

    Raises:
        ImportError: the driver is not installed.
    """
    settings = _CONNECTION if timeout_s is None else {**_CONNECTION, **_prompt(timeout_s)}
    arguments = {name: value for name, value in settings.items() if name not in url.query}
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments, use_native_hstore=False)
    event.listen(engine, "begin", _begin)
    return engine


def options(*, writing: bool) -> dict[str, Any]:
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


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql("; ".join(_LIMITS))
