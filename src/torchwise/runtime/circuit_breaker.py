"""A circuit breaker: it decides when a plan that failed is tried again.

Source: M. Nygard, *Release It!*, "Circuit Breaker". The half-open retries are those of resilience4j.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3
"""Failures after which a circuit opens. A single one may be bad luck, and costs the call nothing but time."""
FIRST_WAIT_S = 60.0
MAX_WAIT_S = 3600.0
"""Seconds for which an open circuit lets nothing through. They double after each retry that fails, up to an hour."""


class CircuitBreaker:
    """Closed, it lets calls through. Open, it lets none, until its time is over. Then it is half-open: one may try.

    Args:
        failures: number of failures that open it.
        first_wait_s: seconds for which it is open first.
        clock: seconds that never go back.
        longest_wait_s: seconds beyond which the wait does not double.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        first_wait_s: float = FIRST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._most = failures
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait_s = first_wait_s
        self._closed_until: float | None = None  # None if the circuit is closed
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether it is open or half-open."""
        return self._closed_until is not None

    @property
    def wait_s(self) -> float:
        """Seconds until it is half-open, or 0 if calls get through."""
        return max(self._closed_until - self._clock(), 0.0) if self._closed_until is not None else 0.0

    def admits(self) -> bool:
        """Whether a call may go through. If several come while it is half-open, one may."""
        with self._lock:
            if self._closed_until is None:
                return True
            now = self._clock()
            if now < self._closed_until:
                return False
            self._closed_until = now + self._wait_s  # the others wait for this one
            self._is_trying = True
            return True

    def record_failure(self) -> bool:
        """Count a failure. Return whether it opened the circuit, or opened it again.

        If several calls were under way when it opened, the others change nothing.
        """
        with self._lock:
            self._failures += 1
            if self._closed_until is not None and not self._is_trying:
                return False
            if self._closed_until is not None:  # the retry failed
                self._is_trying = False
                self._wait_s = min(2 * self._wait_s, max(self._longest_wait_s, self._first_wait_s))
            elif self._failures < self._most:
                return False
            self._closed_until = self._clock() + self._wait_s
            return True

    def record_success(self) -> None:
        """Close it, and forget its failures."""
        with self._lock:
            self._failures, self._wait_s, self._closed_until = 0, self._first_wait_s, None
            self._is_trying = False
