"""Storage of studies: SQLite by default, PostgreSQL by URL. Safe for many processes, and after `kill -9`.

Names are loaded on first use. Importing SQLAlchemy would slow down programs that only check whether there is a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.store.claims import LeaseOwner
    from torchwise.store.copy import CopyResult
    from torchwise.store.explanations import ExplanationSummary
    from torchwise.store.location import default_url
    from torchwise.store.schema import StudyKey, StudySummary
    from torchwise.store.storage import Storage, downgrade_storage, open_storage, read_storage

_HOMES = {
    "CopyResult": "copy",
    "ExplanationSummary": "explanations",
    "LeaseOwner": "claims",
    "Storage": "storage",
    "StudyKey": "schema",
    "StudySummary": "schema",
    "default_url": "location",
    "downgrade_storage": "storage",
    "open_storage": "storage",
    "read_storage": "storage",
}

__all__ = [
    "CopyResult",
    "ExplanationSummary",
    "LeaseOwner",
    "Storage",
    "StudyKey",
    "StudySummary",
    "default_url",
    "downgrade_storage",
    "open_storage",
    "read_storage",
]


__getattr__ = load_attributes(__name__, _HOMES)
