"""Wait for a lost server, with one message and a time limit."""

from __future__ import annotations

import logging
import time

from torchwise.errors import StorageError

PATIENCE_S = 300.0
"""Maximum wait in seconds for a lost server: enough for a restart or a failover, and half of `HEARTBEAT_LIMIT_S`."""

_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # between two tries; the last one is repeated

logger = logging.getLogger("torchwise.store")


class Outage:
    """One outage of the server, from the first call of `wait` to `end`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._since: float | None = None
        self._attempts = 0

    def wait(self, why: StorageError) -> None:
        """Wait a little, and log it the first time.

        Raises:
            StorageError: `why`, once the outage lasts `PATIENCE_S`.
        """
        if self._since is None:
            self._since = time.monotonic()
            logger.warning("%s; waiting for the server, at most %.0f s", why, PATIENCE_S)
        if time.monotonic() - self._since >= PATIENCE_S:
            waited = f"it did not return within {PATIENCE_S:.0f} s; the same command continues from the stored trials"
            raise type(why)(f"{why}; {waited}")
        time.sleep(_PAUSES_S[min(self._attempts, len(_PAUSES_S) - 1)])
        self._attempts += 1

    def end(self) -> None:
        """Log that the server is back, if there was an outage."""
        if self._since is not None:
            logger.warning("store %s is back after %.0f s", self._place, time.monotonic() - self._since)
