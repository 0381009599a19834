"""Measure elapsed time without the time in which other processes have the device."""

from __future__ import annotations

import time

from torchwise.trial.launcher import WAITING, OnStage


class Stopwatch:
    """Counts seconds from its creation, except for stages in which a worker waits for others.

    Args:
        on_stage: called with each stage, too.
    """

    def __init__(self, on_stage: OnStage) -> None:
        self._on_stage = on_stage
        self._start = time.monotonic()
        self._waited_s = 0.0
        self._waits_since: float | None = None

    def stage(self, name: str) -> None:
        """Note that a stage begins."""
        now = time.monotonic()
        if self._waits_since is not None:
            self._waited_s += now - self._waits_since
        self._waits_since = now if name == WAITING else None
        self._on_stage(name)

    @property
    def seconds(self) -> float:
        """The seconds so far. A wait is left out once it is over, as a worker may end in it without a word."""
        return time.monotonic() - self._start - self._waited_s
