"""Programs that tests start and that no wheel brings. A test without its program is skipped, or fails if CI=true."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

PACKAGES = {"redis-server": "redis-server", "PostgreSQL server": "postgresql", "Chromium": "chromium"}
"""The Debian package of each program."""
_MISSING = re.compile(rf"NOT TESTED: there is no ({'|'.join(PACKAGES)})")


def skip_without(program: str) -> NoReturn:
    """End the running test, because its program is missing. It is skipped, but in CI every test must run."""
    reason = f"there is no {program}, which this test starts: apt install {PACKAGES[program]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(f"NOT TESTED: {reason}")


def way_out(reasons: Iterable[str]) -> str:
    """Return a line on how to run the tests that were skipped for want of a program, or "" if none was."""
    missing = Counter(found[1] for reason in reasons if (found := _MISSING.search(reason)))
    if not missing:
        return ""
    said = ", ".join(f"{program} ({count} test{'s' * (count > 1)})" for program, count in sorted(missing.items()))
    names = " ".join(PACKAGES[program] for program in sorted(missing))
    return f"Not tested, for want of {said}. To test: scripts/system-packages as root, or apt install {names}"
