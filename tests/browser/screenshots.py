"""Pictures of pages, for people to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def keep_screenshot(page: Any, file: Path, *, whole: bool = False) -> None:
    """Keep a picture of a page where SCREENSHOTS names a folder for them. Drawing one takes a while."""
    if "SCREENSHOTS" in os.environ:
        page.screenshot(path=file, full_page=whole)
