"""Whether a transaction was committed whose connection broke before the server could say so: each leaves a token.

PostgreSQL's own number of a transaction does not tell. Where a crash lost all of it before anything was on disk, its
number is given again, to another's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, or_
from sqlalchemy.dialects.postgresql import insert

from torchwise.store.clock import now
from torchwise.store.schema import writes

KEPT_S = 86_400.0
"""A process deletes its own tokens once it knows that they were committed; those of a dead one go after a day."""


def is_new(connection: Connection, token: str, known: Sequence[str]) -> bool:
    """Leave a token, which goes with the transaction, and delete those in `known`; say whether it was not there yet.

    Where the transaction that left it is still being committed, its end is waited for.
    """
    at = now(connection)
    connection.execute(delete(writes).where(or_(writes.c.token.in_(known), writes.c.at < at - KEPT_S)))
    left = insert(writes).values(token=token, at=at).on_conflict_do_nothing().returning(writes.c.token)
    return connection.execute(left).first() is not None
