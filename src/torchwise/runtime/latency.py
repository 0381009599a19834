"""Measure a served plan's latency on a sample of its calls, and compare it with the promised one."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from torchwise.alerts import alert
from torchwise.records import Decision

EVERY = 256
"""One call in so many is timed: reading the clock costs a tenth of a microsecond, an event on a GPU several."""
BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-6, 2) for digit in (1, 2, 5))
"""Upper bounds of the histogram's buckets in seconds, 1 microsecond to 50 seconds. Longer durations have a bucket, too.
"""
RECENT = 64
"""Timed calls of which the median is compared with the measurement of the decision."""
SLOWER = 1.5
"""Multiple of the measured duration from which an alert says that the plan is slower: one machine varies by less."""


class Histogram:
    """Counts of durations by bucket.

    Attributes:
        counts: one for each of `BOUNDS_S`, and one for longer durations.
        sum_s: the sum of all durations.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket that this share of the durations reaches, or None without durations.

        The largest bound stands for all longer durations.
        """
        total, cumulated = sum(self.counts), 0
        for count, bound in zip(self.counts, (*BOUNDS_S, BOUNDS_S[-1]), strict=True):
            cumulated += count
            if total and cumulated >= share * total:
                return bound
        return None


class Latency:
    """Times calls. On a GPU, it reads events on its stream at a later call, so that nothing waits.

    After each `RECENT` timed calls, `on_median` is called with their median.
    """

    def __init__(self, device: str, histogram: Histogram, on_median: Callable[[float], None]) -> None:
        self._histogram = histogram
        self._is_cuda = device == "cuda"
        self._on_median = on_median
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._since = 0
        self._pending: tuple[Any, Any] | None = None

    def time_call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call, and time it."""
        return self._time_on_gpu(call, args, kwargs) if self._is_cuda else self._time_on_cpu(call, args, kwargs)

    def _time_on_cpu(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = time.perf_counter()
        answer = call(*args, **kwargs)
        self._add(time.perf_counter() - start)
        return answer

    def _time_on_gpu(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return call(*args, **kwargs)
        pending, self._pending = self._pending, None  # at once: several threads may be here
        if pending is not None and not pending[1].query():  # the GPU is far behind: the next one will do
            self._pending = pending
            return call(*args, **kwargs)
        if pending is not None:
            self._add(pending[0].elapsed_time(pending[1]) / 1e3)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        answer = call(*args, **kwargs)
        end.record()
        self._pending = start, end
        return answer

    def _add(self, seconds: float) -> None:
        self._histogram.add(seconds)
        self._recent.append(seconds)
        self._since += 1
        if self._since >= RECENT:
            self._since = 0
            self._on_median(median(self._recent))


class SpeedMonitor:
    """Receives the recent duration of calls, and raises an alert if it is longer than the decision promised."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._is_slower = False

    def __call__(self, seconds: float) -> None:
        """Compare a median with the promised duration, if there is one for these inputs."""
        promised = self._plan_duration_s()
        if promised is None or seconds <= SLOWER * promised:
            self._is_slower = False
        elif not self._is_slower:
            self._is_slower = True
            plan = str(self._decision.plan)
            message = (
                f"plan {plan} takes {seconds * 1e3:.3g} ms, but {promised * 1e3:.3g} ms were measured for the decision"
            )
            alert("slow_down", message, plan=plan, seconds=seconds, promised_s=promised)

    def _plan_duration_s(self) -> float | None:
        speedup = self._decision.speedup
        return None if speedup is None or len(self._decision.inputs) != 1 else self._decision.baseline_s / speedup.mid
