"""Tokens that show whether a transaction was committed, if its connection broke before the server answered.

The transaction ids of PostgreSQL are not enough. After a crash, PostgreSQL may reuse the id of a transaction that was
lost completely.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, or_
from sqlalchemy.dialects.postgresql import insert

from torchwise.store.db_clock import now
from torchwise.store.schema import writes

KEPT_S = 86_400.0
"""Lifetime of the tokens of a dead process. A living process deletes its own tokens after their commit."""


def is_new(connection: Connection, token: str, known: Sequence[str]) -> bool:
    """Store a token in the transaction, and delete those in `known`. Return False if the token exists already.

    If the transaction that stored it is still being committed, wait for its end.
    """
    at = now(connection)
    connection.execute(delete(writes).where(or_(writes.c.token.in_(known), writes.c.at < at - KEPT_S)))
    statement = insert(writes).values(token=token, at=at).on_conflict_do_nothing().returning(writes.c.token)
    return connection.execute(statement).first() is not None
