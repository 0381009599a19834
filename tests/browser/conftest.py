"""A headless Chromium, and each page as it shows it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import programs

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start the system's Chromium, the one that CHROMIUM names, or Playwright's own.

    Playwright runs an event loop in this thread until it ends, which programs in tests of other files may not meet.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="these tests need: pip install playwright")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        if path is None and not Path(own).exists():
            programs.skip_without("Chromium")
        chromium = started.chromium.launch(executable_path=path or own, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pages and screenshots. SCREENSHOTS names one that keeps them."""
    kept = os.environ.get("SCREENSHOTS")
    if kept is None:
        return tmp_path_factory.mktemp("pages")
    Path(kept).mkdir(parents=True, exist_ok=True)
    return Path(kept)
