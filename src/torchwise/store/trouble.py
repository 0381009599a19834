"""What a database's complaint means to the user: the store, what is wrong with it, and the way out."""

from __future__ import annotations

from torchwise.errors import StorageError

_MEANINGS = (
    (("readonly",), "is read-only: writing needs permission on the file and on its folder"),
    (("locked", "busy"), "stayed locked by another process; wait for it, end it, or give another store"),
    (
        ("not a database", "malformed", "encrypted"),
        "is no SQLite database or is corrupt; move it away and tune again, or give another store",
    ),
    (("unable to open", "no such file"), "cannot be opened: the file and its folder must exist and be accessible"),
    (
        ("no such table", "no such column"),
        "lacks a table or column: it was replaced while in use; try again",
    ),
    (("disk is full", "disk i/o"), "cannot be written: the disk is full or failing"),
)
_BUSY = ("database is locked", "database table is locked", "deadlock detected", "could not serialize")


def is_busy(error: BaseException) -> bool:
    """Whether trying the same transaction again may help: another process was in the way."""
    text = str(error).lower()
    return any(words in text for words in _BUSY)


def explain(error: BaseException, place: str) -> StorageError:
    """Return the error to raise instead of `error`, which the database at `place` gave."""
    said = str(getattr(error, "orig", None) or error).strip()
    for words, meaning in _MEANINGS:
        if any(word in said.lower() for word in words):
            return StorageError(f"store {place} {meaning} ({said})")
    return StorageError(f"store {place} cannot be used: {said}")
