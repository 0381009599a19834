"""The queue of `torchwise.serve_batched` under a fake clock: when a batch is due, its size, and the limit of latency.

The times of a call are given, so that nothing here depends on the machine.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from torchwise.errors import QueueFullError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.runtime.batch_calls import BatchQueue, Request
from torchwise.runtime.batching import MAX_WAIT_MS, WAIT_SHARE


@dataclass(frozen=True)
class Found:
    """What a simulated server did, in seconds and requests per second."""

    latencies: list[float]
    sizes: list[int]
    rate: float
    refused: int

    @property
    def p99(self) -> float:
        return self.latencies[math.ceil(0.99 * len(self.latencies)) - 1]


def simulate(
    rate: float,
    max_batch: int,
    max_wait_s: float,
    call_s: Callable[[int], float],
    *,
    max_waiting: int = 10**6,
    count: int = 10_000,
) -> Found:
    """Send Poisson arrivals of a fake clock through the queue of a model that takes `call_s(size)` a call."""
    draw, now, free_at = random.Random(0), 0.0, 0.0
    arrivals = list(itertools.accumulate(draw.expovariate(rate) for _ in range(count)))
    queue, latencies, sizes, sent, refused = BatchQueue(max_batch, max_wait_s, max_waiting), [], [], 0, 0
    while len(latencies) + refused < len(arrivals):
        while sent < len(arrivals) and arrivals[sent] <= now:
            try:
                queue.put(Request(((), {}), ((), {}), 1, "all", arrivals[sent]))
            except QueueFullError:
                refused += 1
            sent += 1
        if now >= free_at and (batch := queue.take(now)):
            free_at = now + call_s(len(batch))
            sizes.append(len(batch))
            latencies += [free_at - request.arrived_s for request in batch]
            continue
        due_s = queue.wait_s(now)
        due = math.inf if due_s is None else max(now + due_s, math.nextafter(now, math.inf))
        coming = arrivals[sent] if sent < len(arrivals) else math.inf
        now = min(coming, free_at if now < free_at else due)
    return Found(sorted(latencies), sizes, len(latencies) / now, refused)


def find_rate(limit_s: float, max_batch: int, max_wait_s: float, call_s: Callable[[int], float]) -> float:
    """Return the highest rate, to 10 %, whose 99th percentile of the latency keeps a limit."""
    low, high = 0.05 / call_s(1), max_batch / call_s(max_batch)
    while high > 1.1 * low:
        rate = math.sqrt(low * high)
        keeps = simulate(rate, max_batch, max_wait_s, call_s, count=3_000).p99 <= limit_s
        low, high = (rate, high) if keeps else (low, rate)
    return low


def choose_batch(limit_s: float, call_s: Callable[[int], float]) -> int:
    """Return the batch of most samples per second that a search chooses under a limit of latency."""
    spec = WorkloadSpec("zoo:any", objective="throughput", latency_limit=limit_s)
    fitting = [size for size in range(1, 513) if call_s(size) <= spec.call_limit_s]
    return max(fitting, key=lambda size: size / call_s(size))


def call_s(size: int) -> float:
    """A call takes 2 ms, and 0.2 ms a sample, so that batches of 32 pay eight times."""
    return 2e-3 + 0.2e-3 * size


def test_poisson_load_far_above_batch_1_keeps_the_latency_limit() -> None:
    alone = 1 / call_s(1)
    found = simulate(5 * alone, 32, 2e-3, call_s)
    assert found.rate == pytest.approx(5 * alone, rel=0.05), "it keeps up"
    assert found.p99 < 2 * call_s(32) + 2e-3
    assert max(found.sizes) <= 32
    assert simulate(5 * alone, 1, 0.0, call_s).p99 > 1.0, "batch 1 does not keep up"


def test_a_lone_request_waits_no_longer_than_asked_for() -> None:
    found = simulate(1.0, 32, 2e-3, call_s)
    assert found.p99 == pytest.approx(2e-3 + call_s(1), rel=0.05)


def test_a_full_batch_waits_for_nobody_but_a_late_one_of_another_kind() -> None:
    queue = BatchQueue(2, 1.0, 10)
    request = [Request(((), {}), ((), {}), 1, group, at) for group, at in (("a", 0.0), ("b", 0.1), ("b", 0.2))]
    for one in request:
        queue.put(one)
    assert queue.wait_s(0.25) == 0.75
    assert queue.take(0.3) == request[1:]
    assert queue.take(0.9) == []
    assert queue.take(1.0) == request[:1]
    assert (queue.wait_s(1.0), queue.samples) == (None, 0)


@pytest.mark.parametrize("limit_s", [20e-3, 50e-3])
@pytest.mark.parametrize(("each_call_s", "each_sample_s"), [(2e-3, 0.2e-3), (1e-3, 0.05e-3), (5e-3, 1e-3)])
def test_the_chosen_batch_keeps_the_limit_at_more_than_twice_the_requests_of_batch_1(
    each_call_s: float, each_sample_s: float, limit_s: float
) -> None:
    def call_s(size: int) -> float:
        return each_call_s + each_sample_s * size

    size = choose_batch(limit_s, call_s)
    wait_s = min(MAX_WAIT_MS / 1e3, WAIT_SHARE * limit_s)
    alone, together = (find_rate(limit_s, *options, call_s) for options in ((1, 0.0), (size, wait_s)))
    assert together >= 2 * alone
    assert together >= 0.5 * size / call_s(size), "half of all that the model can do, or more"


@pytest.mark.parametrize("overload", [1.5, 5.0])
def test_under_overload_a_queue_of_one_batch_keeps_the_limit_for_every_request_that_it_accepts(overload: float) -> None:
    limit_s = 20e-3
    size = choose_batch(limit_s, call_s)
    capacity = size / call_s(size)
    found = simulate(overload * capacity, size, 2e-3, call_s, max_waiting=size)
    assert found.latencies[-1] <= limit_s, "not the 99th percentile alone"
    assert found.rate >= 0.95 * capacity, "and the model is never idle"
    assert found.refused == pytest.approx((1 - 1 / overload) * 10_000, rel=0.1)
    assert simulate(overload * capacity, size, 2e-3, call_s).p99 > 10 * limit_s, "without a bound, all wait"


def test_a_full_queue_refuses_and_has_room_again_once_a_batch_is_taken() -> None:
    queue = BatchQueue(2, 0.0, 3)
    for at in range(3):
        queue.put(Request(((), {}), ((), {}), 1, "a", float(at)))
    with pytest.raises(QueueFullError, match="3 samples are waiting, but at most 3 may"):
        queue.put(Request(((), {}), ((), {}), 1, "a", 3.0))
    assert len(queue.take(4.0)) == 2
    queue.put(Request(((), {}), ((), {}), 2, "a", 5.0))
    assert queue.samples == 3


def test_a_lone_request_of_one_kind_is_not_starved_by_full_batches_of_another() -> None:
    queue = BatchQueue(2, 1.0, 100)
    queue.put(Request(((), {}), ((), {}), 1, "rare", 0.0))
    taken = []
    for tenth in range(1, 20):
        for _ in range(2):
            queue.put(Request(((), {}), ((), {}), 1, "often", tenth / 10))
        taken.append([request.group for request in queue.take(tenth / 10)])
    assert taken[9] == ["rare"], "it is late at 1.0"
