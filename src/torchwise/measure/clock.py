"""Time calls by the wall clock, and on a GPU by CUDA events too, so that host-bound work is visible."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@functools.cache
def _make_events(_device: int) -> tuple[Any, Any]:
    """Return two events of a device, which its first records create.

    New ones for each reading took some 20 us of an H200's host, as long as a short call.
    """
    events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for event in events:
        event.record()
    return events


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds per call by the wall clock, and by CUDA events (None on the CPU)."""

    wall_s: float
    device_s: float | None


@dataclass(frozen=True, slots=True)
class Clock:
    """Times blocks of calls.

    Attributes:
        device: "cpu" or "cuda".
        each: whether to wait for the device after each call (latency) or once per block (throughput).
        evict: empties the processor's caches, before each block and outside the timed interval. A block must then be
            one call. With None, the data of the call before stay in the caches.
    """

    device: str
    each: bool = True
    evict: Callable[[], None] | None = None

    def time(self, call: Callable[[], Any], calls: int) -> Reading:
        """Run `call` `calls` times, and return the seconds per call."""
        if self.evict is not None:
            self.evict()
            self.synchronize()  # or the GPU would still evict while the host starts the call, whose time would not show
        return self._time_cuda(call, calls) if self.device == "cuda" else self._time_cpu(call, calls)

    def once(self, call: Callable[[], Any]) -> float:
        """Run `call` once, waiting for the device before and after, and return the seconds."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _time_cpu(self, call: Callable[[], Any], calls: int) -> Reading:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return Reading((time.perf_counter() - start) / calls, None)

    def _time_cuda(self, call: Callable[[], Any], calls: int) -> Reading:
        if self.each:
            readings = [self._time_block(call, 1) for _ in range(calls)]
            wall = sum(reading[0] for reading in readings)
            device = sum(reading[1] for reading in readings)
        else:
            torch.cuda.synchronize()
            wall, device = self._time_block(call, calls)
        return Reading(wall / calls, device / calls)

    @staticmethod
    def _time_block(call: Callable[[], Any], calls: int) -> tuple[float, float]:
        begin, end = _make_events(torch.cuda.current_device())
        begin.record()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        wall = time.perf_counter() - start
        return wall, begin.elapsed_time(end) / 1e3
