"""A database and its transactions: short, tried again while another process is in the way, errors in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from torchwise.errors import StorageError
from torchwise.store import sqlite
from torchwise.store.trouble import explain, is_busy

T = TypeVar("T")

ATTEMPTS = 3
"""How often a transaction is tried while the database is locked; each SQLite try waits up to 30 seconds itself."""


class Database:
    """One database. Work is given as a function of a connection, since it may have to be done again."""

    def __init__(self, url: URL) -> None:
        """Open `url`, as `locate` gave it, without touching any table.

        Raises:
            StorageError: the file is unusable, or the driver is not installed.
        """
        self.file = Path(url.database) if url.drivername == "sqlite" and url.database else None
        self.place = str(self.file or url.render_as_string(hide_password=True))
        self._engine = self._make_engine(url)

    @property
    def is_writable(self) -> bool:
        """Whether writing is permitted, as far as can be known beforehand."""
        return self.file is None or sqlite.is_writable(self.file)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns, from one consistent state."""
        self._require_file()
        return self._run(work, writing=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do `work` in one transaction: when this returns it is on disk, when this raises nothing of it is.

        Raises:
            StorageError: the store is read-only, stays locked for `ATTEMPTS` tries, or is damaged.
        """
        self._require_file()
        if not self.is_writable:
            raise StorageError(
                f"store {self.place} is read-only, but this writes: get permission on the file and on its folder, "
                "or give another with --store"
            )
        return self._run(work, writing=True)

    def close(self) -> None:
        """Give back what the database holds; it must not be used afterwards."""
        self._engine.dispose()

    def _require_file(self) -> None:
        if self.file and not self.file.exists():
            raise StorageError(f"store {self.place} is gone: it was deleted or moved while in use")

    def _run(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                connected = self._engine.connect().execution_options(**{sqlite.WRITING: writing})
                with connected as connection, connection.begin():
                    return work(connection)
            except IntegrityError:  # a race that the caller knows how to take, or a mistake of ours
                raise
            except DBAPIError as error:
                if attempt == ATTEMPTS or not is_busy(error):
                    raise explain(error, self.place) from error
                time.sleep(0.05 * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _make_engine(self, url: URL) -> Engine:
        if self.file:
            sqlite.prepare(self.file)
            return sqlite.sqlite_engine(self.file)
        try:
            return create_engine(url, poolclass=NullPool)
        except ImportError as error:
            raise StorageError(
                f"store {self.place} needs the driver psycopg, which cannot be loaded ({error}); "
                "pip install 'torchwise[postgres]'"
            ) from error
