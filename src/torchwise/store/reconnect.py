"""Waiting for a lost server: reported once, in bounded time."""

from __future__ import annotations

import logging
import time

from torchwise.errors import StorageError

PATIENCE_S = 300.0
"""Maximum wait for a lost server: enough for a restart or a failover, and half the time until an owner counts as
dead."""

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # between two tries; the last one is repeated

logger = logging.getLogger("torchwise.store")


class Outage:
    """One time without the server, from the first call of `wait` to `end`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._since: float | None = None
        self._looks = 0

    def wait(self, why: StorageError) -> None:
        """Wait a little, and say so the first time.

        Raises:
            StorageError: `why`, when the server has been away for `PATIENCE_S`.
        """
        if self._since is None:
            self._since = time.monotonic()
            logger.warning("%s; waiting for it, at most %.0f s", why, PATIENCE_S)
        if time.monotonic() - self._since >= PATIENCE_S:
            waited = f"it was waited for {PATIENCE_S:.0f} s; the same command goes on from what is stored"
            raise type(why)(f"{why}; {waited}")
        time.sleep(_PAUSES_S[min(self._looks, len(_PAUSES_S) - 1)])
        self._looks += 1

    def end(self) -> None:
        """Say that the server is back, if it was away."""
        if self._since is not None:
            logger.warning("store %s is back after %.0f s", self._place, time.monotonic() - self._since)
