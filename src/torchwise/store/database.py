"""A database with short transactions, which are repeated while the database is locked, and clear errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine, delete, or_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError

from torchwise.errors import StorageError
from torchwise.installation import suggest_extra
from torchwise.store import engines
from torchwise.store.claims import now
from torchwise.store.db_errors import Outage, explain, is_busy, is_lost
from torchwise.store.location import hide_password
from torchwise.store.schema import writes

T = TypeVar("T")

ATTEMPTS = 3
"""Maximum tries of a transaction while the database is locked. Each try waits up to 30 seconds itself."""
KEPT_S = 86_400.0
"""Lifetime of the tokens of a dead process. A living process deletes its own tokens after their commit."""


class Database:
    """One database. Work is passed as a function of a connection, since it may have to be repeated.

    If a server stops answering, methods wait for it (`db_errors`), since it may be restarting.
    """

    def __init__(self, url: URL, *, prompt_s: float | None = None) -> None:
        """Open `url`, as `locate` gave it, without touching any table.

        Args:
            prompt_s: maximum wait in seconds for a connection or a lock, without repetitions. None uses the longer
                default limits.
        """
        self.file = Path(url.database) if url.drivername == "sqlite" and url.database else None
        self.place = str(self.file or hide_password(url))
        self._engine = self._make_engine(url, prompt_s)
        self._attempts = ATTEMPTS if prompt_s is None else 1
        self._is_patient = prompt_s is None
        self._is_worth_waiting = False
        self._known: list[str] = []
        self.leaves_tokens = False

    @property
    def is_writable(self) -> bool:
        """Whether writing is permitted, as far as permissions show."""
        return self.file is None or engines.is_writable(self.file)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, from one consistent state.

        Raises:
            StorageError: the database is damaged, or cannot be reached within the limit of `db_errors`.
        """
        self._require_file()
        return self._run(work, writing=False, patient=self._is_patient)

    def write(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Run `work` in one transaction. When this returns, all of it is on disk. When this raises, none of it is.

        Args:
            work: may be called again, but takes effect only once (`leaves_tokens`).
            patient: whether to wait for a lost server.

        Raises:
            StorageError: the store is read-only, stays locked for `ATTEMPTS` tries, is damaged, or cannot be reached.
        """
        self._require_file()
        if not self.is_writable:
            raise StorageError(
                f"store {self.place} is read-only, but this command writes: get write permission for the file and its "
                "folder, or give another store with --store"
            )
        return self._run(work, writing=True, patient=patient and self._is_patient)

    def close(self) -> None:
        """Release the database's resources. It must not be used afterwards."""
        self._engine.dispose()

    def _require_file(self) -> None:
        if self.file and not self.file.exists():
            raise StorageError(f"store {self.place} is gone: it was deleted or moved while in use")

    def _run(self, work: Callable[[Connection], T], *, writing: bool, patient: bool) -> T:
        token = uuid.uuid4().hex if writing and self.leaves_tokens and not self.file else None
        transaction, outage, busy = _Transaction(work, token, self._known), Outage(self.place), 0
        while True:
            try:
                answer = transaction.run(self._engine, self._options(writing))
            except IntegrityError:  # a race that the caller handles, or a bug
                raise
            except DBAPIError as error:
                if is_lost(error) and patient and self._is_worth_waiting:
                    self._wait(outage, explain(error, self.place))
                    continue
                busy += 1
                if busy == self._attempts or not is_busy(error):
                    raise explain(error, self.place) from error
                time.sleep(0.05 * busy)
            else:
                self._is_worth_waiting = True
                outage.end()
                return answer

    def _wait(self, outage: Outage, why: StorageError) -> None:
        """Wait a little."""
        try:
            outage.wait(why)
        except BaseException:  # raised again: after a timeout or an interrupt, cleaning up must not wait again
            self._is_worth_waiting = False
            raise

    def _options(self, writing: bool) -> dict[str, Any]:
        return {engines.WRITING: writing} if self.file else engines.server_options(writing=writing)

    def _make_engine(self, url: URL, prompt_s: float | None) -> Engine:
        if self.file:
            engines.prepare_file(self.file)
            return engines.sqlite_engine(self.file, prompt_s)
        try:
            return engines.postgres_engine(url, prompt_s)
        except ImportError as error:
            raise StorageError(
                f"store {self.place} needs the driver psycopg, which cannot be loaded ({error}); "
                + suggest_extra("postgres")
            ) from error


class _Transaction(Generic[T]):
    """Work that takes effect once, even if the connection breaks during its commit."""

    def __init__(self, work: Callable[[Connection], T], token: str | None, known: list[str]) -> None:
        self._work = work
        self._token = token
        self._known = known
        self._done: list[T] = []

    def run(self, engine: Engine, options: dict[str, Any]) -> T:
        known = tuple(self._known)
        with engine.connect().execution_options(**options) as connection, connection.begin():
            if not self._token or is_new(connection, self._token, known):
                self._done[:] = [self._work(connection)]
        if self._token:
            self._known[:] = [*(token for token in self._known if token not in known), self._token]
        return self._done[0]


def is_new(connection: Connection, token: str, known: Sequence[str]) -> bool:
    """Store a token in the transaction, and delete those in `known`. Return False if the token exists already.

    If the transaction that stored it is still being committed, wait for its end. PostgreSQL's own transaction ids are
    not enough: after a crash, it may reuse the id of a transaction that was lost completely.
    """
    at = now(connection)
    connection.execute(delete(writes).where(or_(writes.c.token.in_(known), writes.c.at < at - KEPT_S)))
    statement = insert(writes).values(token=token, at=at).on_conflict_do_nothing().returning(writes.c.token)
    return connection.execute(statement).first() is not None
