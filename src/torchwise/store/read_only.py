"""Open a store for a quick read, without creating, migrating or waiting."""

from __future__ import annotations

from torchwise.errors import StorageError
from torchwise.store.database import Database
from torchwise.store.location import check_exists, default_url, locate
from torchwise.store.migrate import revision_of
from torchwise.store.schema import HEAD
from torchwise.store.storage import Storage

PROMPT_S = 3.0
"""Maximum wait in seconds for a connection to a server or for a lock on a file."""

APPROVALS_SINCE = "0003"
"""The schema that introduced approvals."""


def read_storage(url: str | None = None) -> Storage | None:
    """Open the store at `url` without changing it, or raise at once. Return None if its schema has no approvals.

    Args:
        url: as in `open_storage`.

    Raises:
        StorageError: it does not exist, cannot be reached within `PROMPT_S`, or its schema is not this version's.
    """
    location = locate(url or default_url())
    check_exists(location)
    database = Database(location, prompt_s=PROMPT_S)
    revision = database.read(revision_of)
    if revision == HEAD:
        return Storage(database)
    database.close()
    if revision is None or revision < APPROVALS_SINCE:
        return None
    way_out = "pip install -U torchwise" if revision > HEAD else "torchwise store info migrates it"
    raise StorageError(f"store {database.place} has schema {revision!r}, but must have {HEAD!r} to be read: {way_out}")
