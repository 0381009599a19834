"""The time from which the budget of a command counts: loading its code takes seconds on a busy machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_begun: list[float] = []


@contextlib.contextmanager
def running_command() -> Iterator[None]:
    """Have budgets count from here on, while a command runs."""
    _begun.append(time.monotonic())
    try:
        yield
    finally:
        _begun.pop()


def budget_start() -> float:
    """Return the start of the running command by `time.monotonic`, or now in any other program."""
    return _begun[-1] if _begun else time.monotonic()
