"""Check for approvals of a target at every start of a program, within a millisecond for SQLite."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from torchwise.store.location import default_url, file_of


def may_have_approvals(store: str | None, target: str) -> bool:
    """Return whether a store may hold an approval for `target`, without loading SQLAlchemy.

    Args:
        store: as in `open_storage`, or None for the default, which need not exist.
        target: its name in the workload.
    """
    file = file_of(store or default_url())
    if file is None:
        return True
    if not file.exists():
        return store is not None  # opening the store reports the missing file
    return not _holds_none(file, target)


def _holds_none(file: Path, target: str) -> bool:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0.1)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'torchwise_rulings'").fetchall():
                return True
            query = "SELECT 1 FROM torchwise_rulings WHERE target = ? LIMIT 1"
            return not connection.execute(query, (target,)).fetchall()
    except sqlite3.Error:  # a real read of the store reports the problem
        return False
