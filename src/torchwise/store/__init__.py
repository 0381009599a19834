"""Where studies are kept: SQLite by default, PostgreSQL by URL. Safe for many processes, and after `kill -9`."""

from torchwise.store.copying import Copied
from torchwise.store.keys import StudyKey, StudySummary
from torchwise.store.location import default_url
from torchwise.store.owner import Owner
from torchwise.store.storage import Storage, downgrade_storage, open_storage

__all__ = ["Copied", "Owner", "Storage", "StudyKey", "StudySummary", "default_url", "downgrade_storage", "open_storage"]
