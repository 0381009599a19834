"""Limit how often to do work that saves time only later, such as the search for a bypass."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05
"""The share of the time that may be spent on it."""


class Pace:
    """Decides when work may be repeated: the first time at once, and then so that it takes only a share of the time.

        if pace.is_due():
            with pace:
                ...

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = self._next = 0.0

    def is_due(self) -> bool:
        """Whether it may be done now."""
        return self._clock() >= self._next

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_error: object) -> None:
        now = self._clock()
        self._next = now + (now - self._began) / SHARE
