"""Tokens that tell whether a transaction was committed if its connection broke before the server could say so.

PostgreSQL's own number of a transaction does not tell. If a crash lost all of it before anything was on disk, its
number is given again, to another transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, or_
from sqlalchemy.dialects.postgresql import insert

from torchwise.store.db_clock import now
from torchwise.store.schema import writes

KEPT_S = 86_400.0
"""A process deletes its own tokens once it knows that they were committed. Those of a dead process go after a day."""


def is_new(connection: Connection, token: str, known: Sequence[str]) -> bool:
    """Leave a token with the transaction, and delete those in `known`. Return whether it was not there yet.

    If the transaction that left it is still being committed, wait for its end.
    """
    at = now(connection)
    connection.execute(delete(writes).where(or_(writes.c.token.in_(known), writes.c.at < at - KEPT_S)))
    left = insert(writes).values(token=token, at=at).on_conflict_do_nothing().returning(writes.c.token)
    return connection.execute(left).first() is not None
