"""Circuit breakers: they decide when a plan that failed is tried again.

Source: M. Nygard, *Release It!*, "Circuit Breaker". The half-open retries are those of resilience4j.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from torch import is_grad_enabled

from torchwise.compile.signature import forget_oldest
from torchwise.runtime.fallback_reason import Fallback, FallbackReason

FAILURES = 3
"""Failures after which a circuit opens. A single one may be bad luck, and costs the call nothing but time."""
FIRST_WAIT_S = 60.0
MAX_WAIT_S = 3600.0
"""Seconds for which an open circuit lets nothing through. They double after each retry that fails, up to an hour."""
MAX_CIRCUITS = 1024
"""Signatures whose failures are remembered: a plan for dynamic shapes may meet any number of them."""
REFUSED_WAIT_S, MAX_REFUSED_WAIT_S = 1.0, 60.0
"""Seconds for which a frozen plan is left alone on calls that it would be compiled for: asking takes some 10 ms."""
MEMORY_WAIT_S = 600.0
"""Seconds without the plan after the GPU ran out of memory. The cause may be gone by then."""

FROZEN_CHANGED = Fallback(FallbackReason.FROZEN_CHANGED)
CIRCUIT_OPEN = Fallback(FallbackReason.CIRCUIT_OPEN)
OUT_OF_MEMORY = Fallback(FallbackReason.OUT_OF_MEMORY)


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
        until = self._closed_until  # which another thread may set to None
        return 0.0 if until is None else max(until - self._clock(), 0.0)

    def would_admit(self) -> bool:
        """Whether a call could go through now."""
        until = self._closed_until  # as above
        return until is None or self._clock() >= until

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


class PlanCircuits:
    """The circuits of one plan: one for each signature that it failed on, and one for its memory.

    A frozen plan has others for calls that it would be compiled for again, by signature and grad mode.

    Attributes:
        memory: the circuit that opens if the GPU runs out of memory.
    """

    def __init__(self) -> None:
        self._failed: dict[Hashable, CircuitBreaker] = {}
        self._frozen: dict[Hashable, CircuitBreaker] = {}
        self.memory = CircuitBreaker(failures=1, first_wait_s=MEMORY_WAIT_S)

    def admit(self, key: Hashable) -> Fallback | None:
        """Let a call through, or return why the plan is left alone for now on such calls."""
        return self._find_open(key, lambda circuit: circuit.admits())

    def find_wait(self, key: Hashable) -> Fallback | None:
        """Return as `admit` does, but let nothing through."""
        return self._find_open(key, lambda circuit: circuit.would_admit())

    def _find_open(self, key: Hashable, admits: Callable[[CircuitBreaker], bool]) -> Fallback | None:
        if (frozen := self._frozen.get((key, is_grad_enabled()))) is not None and not admits(frozen):
            return FROZEN_CHANGED
        if (failed := self._failed.get(key)) is not None and not admits(failed):
            return CIRCUIT_OPEN
        return None if admits(self.memory) else OUT_OF_MEMORY

    def record_success(self, key: Hashable) -> None:
        """Close the circuits that the plan's answer to such a call went through."""
        if (failed := self._failed.pop(key, None)) is not None:
            failed.record_success()
        self._frozen.pop((key, is_grad_enabled()), None)
        self.memory.record_success()

    def record_failure(self, key: Hashable) -> float | None:
        """Count a failure. Return the seconds until the plan is tried again, if that opened the circuit."""
        failed = self._failed.setdefault(key, CircuitBreaker())
        forget_oldest(self._failed, MAX_CIRCUITS)
        return failed.wait_s if failed.record_failure() else None

    def record_frozen(self, key: Hashable) -> None:
        """Leave a frozen plan alone on such calls for a time, as it would be compiled again."""
        waits = CircuitBreaker(1, REFUSED_WAIT_S, longest_wait_s=MAX_REFUSED_WAIT_S)
        self._frozen.setdefault((key, is_grad_enabled()), waits).record_failure()
        forget_oldest(self._frozen, MAX_CIRCUITS)

    def forget_frozen(self) -> None:
        """Forget the calls that a frozen plan was left alone on."""
        self._frozen.clear()
