"""A database and its transactions: short, tried again while another process is in the way, errors in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from torchwise.errors import StorageError
from torchwise.store import postgres, sqlite
from torchwise.store.location import shown
from torchwise.store.outage import Outage
from torchwise.store.trouble import explain, is_busy, is_lost

T = TypeVar("T")

ATTEMPTS = 3
"""How often a transaction is tried while the database is locked; each try waits up to 30 seconds itself."""


class Database:
    """One database. Work is given as a function of a connection, since it may have to be done again.

    A server that answered before and does so no more is waited for (`outage`), since it may be starting again.
    """

    def __init__(self, url: URL) -> None:
        """Open `url`, as `locate` gave it, without touching any table.

        Raises:
            StorageError: the file is unusable, or the driver is not installed.
        """
        self.file = Path(url.database) if url.drivername == "sqlite" and url.database else None
        self.place = str(self.file or shown(url))
        self._engine = self._make_engine(url)
        self._is_worth_waiting = False

    @property
    def is_writable(self) -> bool:
        """Whether writing is permitted, as far as can be known beforehand."""
        return self.file is None or sqlite.is_writable(self.file)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, from one consistent state.

        Raises:
            StorageError: the database is damaged, or cannot be reached for the limit of `outage`.
        """
        self._require_file()
        return self._run(work, writing=False, patient=True)

    def write(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Do `work` in one transaction: when this returns it is on disk, when this raises nothing of it is.

        Args:
            work: may be called again, and never takes effect twice.
            patient: wait for a server that is lost.

        Raises:
            StorageError: the store is read-only, stays locked for `ATTEMPTS` tries, is damaged, or cannot be reached.
        """
        self._require_file()
        if not self.is_writable:
            raise StorageError(
                f"store {self.place} is read-only, but this writes: get permission on the file and on its folder, "
                "or give another with --store"
            )
        return self._run(work, writing=True, patient=patient)

    def close(self) -> None:
        """Give back what the database holds; it must not be used afterwards."""
        self._engine.dispose()

    def _require_file(self) -> None:
        if self.file and not self.file.exists():
            raise StorageError(f"store {self.place} is gone: it was deleted or moved while in use")

    def _run(self, work: Callable[[Connection], T], *, writing: bool, patient: bool) -> T:
        transaction, outage, busy = _Transaction(work, writing), Outage(self.place), 0
        while True:
            try:
                answer = transaction.run(self._engine, self._options(writing))
            except IntegrityError:  # a race that the caller knows how to take, or a mistake of ours
                raise
            except DBAPIError as error:
                if is_lost(error) and patient and self._is_worth_waiting:
                    self._wait(outage, explain(error, self.place))
                    continue
                busy += 1
                if busy == ATTEMPTS or not is_busy(error):
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
        except BaseException:  # raised again: whoever gives up, or is interrupted, must not wait again to clean up
            self._is_worth_waiting = False
            raise

    def _options(self, writing: bool) -> dict[str, Any]:
        return {sqlite.WRITING: writing} if self.file else postgres.options(writing=writing)

    def _make_engine(self, url: URL) -> Engine:
        if self.file:
            sqlite.prepare(self.file)
            return sqlite.sqlite_engine(self.file)
        try:
            return postgres.postgres_engine(url)
        except ImportError as error:
            raise StorageError(
                f"store {self.place} needs the driver psycopg, which cannot be loaded ({error}); "
                "pip install 'torchwise[postgres]'"
            ) from error


class _Transaction(Generic[T]):
    """Work that is done once, though its connection may break when nobody can say whether it was committed."""

    def __init__(self, work: Callable[[Connection], T], writing: bool) -> None:
        self._work = work
        self._writing = writing
        self._done: tuple[str, T] | None = None

    def run(self, engine: Engine, options: dict[str, Any]) -> T:
        with engine.connect().execution_options(**options) as connection, connection.begin():
            if self._done and postgres.was_committed(connection, self._done[0]):
                return self._done[1]
            answer = self._work(connection)
            if self._writing and (number := postgres.transaction_number(connection)):
                self._done = number, answer
            return answer
