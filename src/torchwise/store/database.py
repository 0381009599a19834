"""A database and its transactions: short, tried again while another process is in the way, errors in words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from torchwise.errors import StorageError
from torchwise.store import commit_tokens, postgres, sqlite
from torchwise.store.db_errors import explain, is_busy, is_lost
from torchwise.store.location import hide_password
from torchwise.store.reconnect import Outage

T = TypeVar("T")

ATTEMPTS = 3
"""Maximum tries of a transaction while the database is locked. Each try waits up to 30 seconds itself."""


class Database:
    """One database. Work is given as a function of a connection, since it may have to be done again.

    If a server answered before and no longer does, it is waited for (`outage`), since it may be starting again.
    """

    def __init__(self, url: URL, *, prompt_s: float | None = None) -> None:
        """Open `url`, as `locate` gave it, without touching any table.

        Args:
            url: the file or the server.
            prompt_s: try everything once, and wait no longer than this for a connection or a lock. None waits
                patiently.

        Raises:
            StorageError: the file is unusable, or the driver is not installed.
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
        """Whether writing is permitted, as far as can be known beforehand."""
        return self.file is None or sqlite.is_writable(self.file)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, from one consistent state.

        Raises:
            StorageError: the database is damaged, or cannot be reached for the limit of `outage`.
        """
        self._require_file()
        return self._run(work, writing=False, patient=self._is_patient)

    def write(self, work: Callable[[Connection], T], *, patient: bool = True) -> T:
        """Do `work` in one transaction: when this returns, it is on disk, and when this raises, nothing of it is.

        Args:
            work: may be called again, and never takes effect twice once there are tables (`leaves_tokens`).
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
            except IntegrityError:  # a race that the caller can handle, or a mistake of ours
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
        except BaseException:  # raised again: one who gives up, or is interrupted, must not wait again to clean up
            self._is_worth_waiting = False
            raise

    def _options(self, writing: bool) -> dict[str, Any]:
        return {sqlite.WRITING: writing} if self.file else postgres.options(writing=writing)

    def _make_engine(self, url: URL, prompt_s: float | None) -> Engine:
        if self.file:
            sqlite.prepare(self.file)
            return sqlite.sqlite_engine(self.file, prompt_s)
        try:
            return postgres.postgres_engine(url, prompt_s)
        except ImportError as error:
            raise StorageError(
                f"store {self.place} needs the driver psycopg, which cannot be loaded ({error}); "
                "pip install 'torchwise[postgres]'"
            ) from error


class _Transaction(Generic[T]):
    """Work that is done once, though its connection may break when nobody can say whether it was committed."""

    def __init__(self, work: Callable[[Connection], T], token: str | None, known: list[str]) -> None:
        self._work = work
        self._token = token
        self._known = known
        self._done: list[T] = []

    def run(self, engine: Engine, options: dict[str, Any]) -> T:
        known = tuple(self._known)
        with engine.connect().execution_options(**options) as connection, connection.begin():
            if not self._token or commit_tokens.is_new(connection, self._token, known):
                self._done[:] = [self._work(connection)]
        if self._token:
            self._known[:] = [*(token for token in self._known if token not in known), self._token]
        return self._done[0]
