"""A PostgreSQL server as the store: its connections, the limits of its waits, and what it says about a transaction.

Every transaction has a connection of its own, so that a fork, a restarted server or a pooler in between harms none.
Versions 13 and later, which have the functions of `was_committed`.
"""

from __future__ import annotations

import time
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


def postgres_engine(url: URL) -> Engine:
    """Return an engine for `url`; nothing is connected yet.

    Raises:
        ImportError: the driver is not installed.
    """
    given = {name: value for name, value in _CONNECTION.items() if name not in url.query}
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


def transaction_number(connection: Connection) -> str | None:
    """Return the number by which the server knows a transaction's fate; None where it wrote nothing, or is a file's."""
    if connection.dialect.name != "postgresql":
        return None
    return connection.execute(text("SELECT pg_current_xact_id_if_assigned()::text")).scalar()


def was_committed(connection: Connection, number: str) -> bool:
    """Whether that transaction was committed, though the connection was lost before the server could say so.

    A number that the server has not given out yet is one that it forgot in a crash: nothing of it is left.
    """
    asked = text(
        "SELECT CASE WHEN number < pg_current_xact_id() THEN pg_xact_status(number) END "
        "FROM (SELECT CAST(:number AS xid8) AS number) AS asked"
    )
    for _ in range(10 * IDLE_LIMIT_S):
        if (status := connection.execute(asked, {"number": number}).scalar()) != "in progress":
            return bool(status == "committed")
        time.sleep(0.1)  # the server has not yet noticed that the connection is gone
    return False


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql("; ".join(_LIMITS))
