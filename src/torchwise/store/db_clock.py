"""One clock for all who share a store: by it owners count as dead, and decisions as newer."""

from __future__ import annotations

import time

from sqlalchemy import Connection, text


def now(connection: Connection) -> float:
    """Return seconds since the epoch: the server's, since its clients' clocks differ, or this host's for a file."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
