"""One clock for all processes that share a store, for heartbeats of owners and dates of decisions."""

from __future__ import annotations

import time

from sqlalchemy import Connection, text


def now(connection: Connection) -> float:
    """Return seconds since the epoch: by the server's clock, since its clients' clocks differ, or by this host's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
