"""Storage of studies: SQLite by default, PostgreSQL by URL. Safe for many processes, and after `kill -9`.

Names are loaded on first use. Importing SQLAlchemy would slow down programs that only check whether there is a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.store.claims import LeaseOwner
    from torchwise.store.copy import CopyResult
    from torchwise.store.location import default_url
    from torchwise.store.reports import Report, ReportKind, ReportSummary
    from torchwise.store.schema import StudyKey, StudySummary
    from torchwise.store.storage import Storage, downgrade_storage, open_storage, read_storage

_HOMES = {
    "CopyResult": "copy",
    "LeaseOwner": "claims",
    "Report": "reports",
    "ReportKind": "reports",
    "ReportSummary": "reports",
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
    "LeaseOwner",
    "Report",
    "ReportKind",
    "ReportSummary",
    "Storage",
    "StudyKey",
    "StudySummary",
    "default_url",
    "downgrade_storage",
    "open_storage",
    "read_storage",
]

__getattr__ = load_attributes(__name__, _HOMES, former={"ExplanationSummary": "ReportSummary"})
