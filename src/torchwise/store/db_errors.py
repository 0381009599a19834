"""Explain database errors to the user, and wait for a lost server, with one message and a time limit."""

from __future__ import annotations

import logging
import time

from torchwise.errors import StorageError

_MEANINGS = (
    (("readonly",), "is read-only: writing needs write permission for the file and its folder"),
    (("locked", "busy"), "is locked by another process; wait for it, end it, or give another store"),
    (
        ("not a database", "malformed", "encrypted"),
        "is no SQLite database, or is corrupt; move it away and tune again, or give another store",
    ),
    (("unable to open", "no such file"), "cannot be opened: the file and its folder must exist and be accessible"),
    (
        ("no such table", "no such column"),
        "lacks a table or column: it was replaced while in use; try again",
    ),
    (("disk is full", "disk i/o"), "cannot be written: the disk is full or failing"),
)

# By PostgreSQL's codes or classes of codes, since its messages are in the language of the server.
_CODES = (
    (("42501",), "denies this user a permission; have its owner GRANT it (creating the tables needs CREATE)"),
    (("25006",), "is read-only, such as a replica, but this command writes; give the URL of the primary server"),
    (("55P03", "40001", "40P01"), "is locked by another process; wait for it, end it, or give another store"),
    (("42P01", "42703"), "lacks a table or column: it was replaced while in use; try again"),
    (("53100",), "cannot be written: the server's disk is full"),
    (("0A000", "42883"), "is on a server that lacks a feature: it must be PostgreSQL 13 or later"),
)

# A refused connection has no code, only a message. Waiting does not help in these cases.
_REFUSALS = (
    (
        ("authentication failed", "no password supplied", "no pg_hba.conf entry", 'role "'),
        "refuses this user or password; set the password in the URL, in PGPASSWORD or in ~/.pgpass",
    ),
    (
        ('database "',),
        "names a database that does not exist, or that this user may not open; createdb NAME creates one",
    ),
)

_BUSY = ("database is locked", "database table is locked")
_BUSY_CODES = ("40001", "40P01", "55P03")  # serialisation failure, deadlock, lock timeout
# The connection broke. The server stops, crashed, starts, or has no free connection. Or our transaction was idle.
_LOST_CODES = ("08", "57P01", "57P02", "57P03", "53300", "25P03")
_UNANSWERED = ("OperationalError", "ConnectionTimeout")  # psycopg's, if no server gave a code


class UnreachableError(StorageError):
    """The database's server does not answer, which may be temporary."""


def is_busy(error: BaseException) -> bool:
    """Whether repeating the transaction may help, because another process held a lock."""
    return _code(error) in _BUSY_CODES or any(words in str(error).lower() for words in _BUSY)


def is_lost(error: BaseException) -> bool:
    """Whether the connection to a server was lost, or cannot be opened at present."""
    raised = getattr(error, "orig", None)
    if not hasattr(raised, "sqlstate"):  # the error of a file, which needs no connection
        return False
    if code := _code(error):
        return code.startswith(_LOST_CODES)
    return type(raised).__name__ in _UNANSWERED and _refusal(str(raised)) is None


def explain(error: BaseException, place: str) -> StorageError:
    """Return the error to raise instead of `error`, which the database at `place` raised."""
    message = " ".join(str(getattr(error, "orig", None) or error).split())
    if is_lost(error):
        return UnreachableError(
            f"store {place} cannot be reached: check that the server runs, and check host, port and network ({message})"
        )
    meaning = _explain_error(error, message)
    return StorageError(
        f"store {place} {meaning} ({message})" if meaning else f"store {place} cannot be used: {message}"
    )


def _explain_error(error: BaseException, message: str) -> str | None:
    if hasattr(getattr(error, "orig", None), "sqlstate"):
        code = _code(error)
        by_code = (meaning for codes, meaning in _CODES if code.startswith(codes)) if code else iter(())
        return next(by_code, None) or _refusal(message)
    return next((meaning for words, meaning in _MEANINGS if any(word in message.lower() for word in words)), None)


def _refusal(message: str) -> str | None:
    return next((meaning for words, meaning in _REFUSALS if any(word in message for word in words)), None)


def _code(error: BaseException) -> str:
    """Return PostgreSQL's code for an error, or "" if it has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


PATIENCE_S = 300.0
"""Maximum wait in seconds for a lost server: enough for a restart or a failover, and half of `HEARTBEAT_LIMIT_S`."""

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # between two tries; the last one is repeated

logger = logging.getLogger("torchwise.store")


class Outage:
    """One outage of the server, from the first call of `wait` to `end`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._since: float | None = None
        self._attempts = 0

    def wait(self, why: StorageError) -> None:
        """Wait a little, and log it the first time.

        Raises:
            StorageError: `why`, once the outage lasts `PATIENCE_S`.
        """
        if self._since is None:
            self._since = time.monotonic()
            logger.warning("%s; waiting for the server, at most %.0f s", why, PATIENCE_S)
        if time.monotonic() - self._since >= PATIENCE_S:
            waited = f"it did not return within {PATIENCE_S:.0f} s; the same command continues from the stored trials"
            raise type(why)(f"{why}; {waited}")
        time.sleep(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)])
        self._attempts += 1

    def end(self) -> None:
        """Log that the server is back, if there was an outage."""
        if self._since is not None:
            logger.warning("store %s is back after %.0f s", self._place, time.monotonic() - self._since)
