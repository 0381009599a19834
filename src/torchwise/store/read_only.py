"""A store opened as it is, for a read that must not delay anybody: nothing is made, migrated or waited for."""

from __future__ import annotations

from torchwise.errors import StorageError
from torchwise.store.database import Database
from torchwise.store.location import check_exists, default_url, locate
from torchwise.store.migrate import revision_of
from torchwise.store.schema import HEAD
from torchwise.store.storage import Storage

PROMPT_S = 3.0
"""Maximum wait for a server to let us in, or for a file to be unlocked."""

APPROVALS_SINCE = "0003"
"""The schema that introduced rulings."""


def read_storage(url: str | None = None) -> Storage | None:
    """Open the store at `url` as it is, or raise at once. Return None if it is older than rulings.

    Args:
        url: as in `open_storage`.

    Raises:
        StorageError: it is not there, cannot be reached within `PROMPT_S`, or its schema is not this version's.
    """
    location = locate(url or default_url())
    check_exists(location)
    database = Database(location, prompt_s=PROMPT_S)
    held = database.read(revision_of)
    if held == HEAD:
        return Storage(database)
    database.close()
    if held is None or held < APPROVALS_SINCE:
        return None
    way_out = "pip install -U torchwise" if held > HEAD else "torchwise store info migrates it"
    raise StorageError(f"store {database.place} has schema {held!r}, but must have {HEAD!r} to be read: {way_out}")
