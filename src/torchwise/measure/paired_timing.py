"""Candidate against baseline, in alternation, until the answer is tight or the time is used up.

Each round times both, one right after the other, in an order that swaps from round to round. A machine that drifts or
is disturbed hits both alike, and the ratio of a pair cancels it. The idea is that of pyperf and of paired designs at
large (Kalibera & Jones, Rigorous benchmarking in reasonable time, ISMM 2013).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torchwise.measure import device_lock
from torchwise.measure.clock import Clock, Reading
from torchwise.measure.quality import Watch
from torchwise.records import Measurement
from torchwise.records.measurement import INTERFERENCE_FACTOR

MIN_ROUND_S = 0.002
"""A block lasts at least this long, so that the clock's own cost and resolution stay under 0.1 %."""
QUEUED_CALLS, QUEUED_S = 20, 0.1
"""Calls in a block, or its seconds, for throughput on a GPU.

The host then runs ahead of the device as in a loop. In a block of one call it would wait for each.
"""
STOPPING_ROUNDS = 12
MIN_ROUNDS = 5
"""Rounds that are always made: the range of five holds the median with 94 %, that of three with 75 %."""
MAX_ROUNDS = 400
CHECK_EVERY = 5
"""Rounds between two checks of the interval, an odd number, so that the sides alternate in coming first after a check.

A check leaves the processor's caches full of other data. When the candidate always came first, eager came out at 0.98
of itself in blocks of 2 ms.
"""
MAX_CALIBRATION_CALLS = 500
"""Calls of one example that determine how many fill a block: the clock itself takes longer than short ones."""
AGAIN, PAUSE_S = 2, 1.0
"""How many times a disturbed measurement is repeated, and the seconds until then: the machine may be quieter.

The pause is no longer than the measurement itself may take.
"""


@dataclass(frozen=True, slots=True)
class Precision:
    """The stopping rule of a measurement.

    Attributes:
        half_width: relative half-width of the 95 % interval of the paired ratio that is tight enough.
        budget_s: seconds after which measuring stops, with any width of the interval.
        block_s: least seconds of a block of calls. The first call of a block finds the other side's data in the
            processor's caches. The longer the block, the less that weighs.
        rounds: how many are always made. If threads wait for cores, most blocks take long and some do not. A few rounds
            cannot show which.
    """

    half_width: float = 0.02
    budget_s: float = 4.0
    block_s: float = MIN_ROUND_S
    rounds: int = MIN_ROUNDS


@dataclass(frozen=True, slots=True)
class Mix:
    """Calls for each example of the shape mix, with weights that sum to 1."""

    calls: tuple[Callable[[], Any], ...]
    weights: tuple[float, ...]

    def time(self, clock: Clock, repeats: Sequence[int]) -> Reading:
        """Return seconds per call of the mix: each example timed by itself, then weighted."""
        readings = [clock.time(call, n) for call, n in zip(self.calls, repeats, strict=True)]
        wall = sum(w * reading.wall_s for w, reading in zip(self.weights, readings, strict=True))
        if readings[0].device_s is None:
            return Reading(wall, None)
        return Reading(wall, sum(w * (r.device_s or 0.0) for w, r in zip(self.weights, readings, strict=True)))


def measure_pair(
    candidate: Mix,
    baseline: Mix,
    clock: Clock,
    precision: Precision,
    *,
    prune_below: float | None = None,
    expected_s: tuple[float | None, float | None] = (None, None),
) -> Measurement:
    """Time `candidate` and `baseline` in alternation, both warm and verified already.

    Args:
        candidate: the calls to try.
        baseline: eager, on the same inputs.
        clock: for the device, and for latency or throughput.
        precision: when to stop.
        prune_below: stop as soon as the speed-up's interval lies wholly below this.
        expected_s: seconds per call of the candidate and of the baseline at another time, or None if unknown.

    Returns:
        Raw samples, with the caveats of the measurement in `notes`. If one side took far longer than usual, or the
            interval is inconclusive, both are measured again. The least disturbed samples are returned.
    """
    with device_lock.alone():
        found, made = _measure_pair(candidate, baseline, clock, precision, prune_below), 1
        first = why = _disturbance(found, expected_s)
        until = time.perf_counter() + precision.budget_s  # as long again, and no longer
        while why and made <= AGAIN and time.perf_counter() < until:
            time.sleep(min(PAUSE_S, precision.budget_s))
            again = _measure_pair(candidate, baseline, clock, precision, prune_below)
            found, made = min(found, again, key=partial(_unrest, expected_s=expected_s)), made + 1
            why = _disturbance(found, expected_s)
    notes = [f"measured {made} times, as at first {first}"] if made > 1 else []
    return replace(found, notes=(*found.notes, *notes, *([why] if why else [])))


def _unrest(found: Measurement, expected_s: tuple[float | None, float | None]) -> tuple[float, float]:
    return max(found.times_as_long(expected_s), INTERFERENCE_FACTOR), found.speedup.half_width


def _disturbance(found: Measurement, expected_s: tuple[float | None, float | None]) -> str:
    """Describe a disturbance of a measurement that makes another one worthwhile, or return "" if there was none."""
    if (times := found.times_as_long(expected_s)) > INTERFERENCE_FACTOR:
        which = "eager" if expected_s[0] is None else "one of the two"
        return f"{which} took {times:.1f} times as long as before: something slowed it down"
    return "" if found.pruned or found.speedup.is_usable else "the times were too far apart to tell a ratio"


def _measure_pair(
    candidate: Mix, baseline: Mix, clock: Clock, precision: Precision, prune_below: float | None
) -> Measurement:
    repeats = _repeats((candidate, baseline), clock, precision.block_s)
    rounds: list[tuple[Reading, Reading]] = []
    watch = Watch(clock.device)
    pruned = False
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    deadline = time.perf_counter() + precision.budget_s
    try:
        while len(rounds) < MAX_ROUNDS and (len(rounds) < precision.rounds or time.perf_counter() < deadline):
            rounds.append(_round(candidate, baseline, clock, repeats, swap=len(rounds) % 2 == 1))
            more = len(rounds) - STOPPING_ROUNDS
            if more >= 0 and more % CHECK_EVERY == 0:
                speedup = _record(rounds, 1).speedup
                pruned = prune_below is not None and speedup.high < prune_below
                if pruned or (len(rounds) >= precision.rounds and speedup.half_width <= precision.half_width):
                    break
    finally:
        if collecting:
            gc.enable()
    result = replace(_record(rounds, max(repeats[id(candidate)])), pruned=pruned)
    return watch.judge(result, precision.half_width)


def _round(
    candidate: Mix, baseline: Mix, clock: Clock, repeats: dict[int, list[int]], *, swap: bool
) -> tuple[Reading, Reading]:
    if swap:
        second = baseline.time(clock, repeats[id(baseline)])
        return candidate.time(clock, repeats[id(candidate)]), second
    first = candidate.time(clock, repeats[id(candidate)])
    return first, baseline.time(clock, repeats[id(baseline)])


def _repeats(sides: Sequence[Mix], clock: Clock, block_s: float) -> dict[int, list[int]]:
    """Return how many calls of each example fill a block, by the id of the side.

    The sides take turns, and the shortest of many calls counts. A side timed while the device and the caches are still
    cold would have fewer calls to a block than the other. The first calls of its blocks, which take longer, would weigh
    more: eager came out some percent slower than itself.

    With cold caches a block is one call, as the next one would find the first one's data.
    """
    if clock.evict is not None:
        return {id(mix): [1] * len(mix.calls) for mix in sides}
    least = {id(mix): [float("inf")] * len(mix.calls) for mix in sides}
    for _ in range(2):
        for mix in sides:
            now = [_shortest(clock, call, block_s) for call in mix.calls]
            least[id(mix)] = [min(pair) for pair in zip(least[id(mix)], now, strict=True)]
    return {side: [_calls_per_block(clock, seconds, block_s) for seconds in each] for side, each in least.items()}


def _shortest(clock: Clock, call: Callable[[], Any], block_s: float) -> float:
    """Return the seconds of the shortest call: of those that fill a block, at most `MAX_CALIBRATION_CALLS`."""
    shortest, spent, calls_made = float("inf"), 0.0, 0
    while spent < block_s and calls_made < MAX_CALIBRATION_CALLS:
        seconds = max(clock.time(call, 1).wall_s, 1e-7)
        shortest, spent, calls_made = min(shortest, seconds), spent + seconds, calls_made + 1
    return shortest


def _calls_per_block(clock: Clock, seconds: float, block_s: float) -> int:
    queued = 1 if clock.each or clock.device == "cpu" else min(QUEUED_CALLS, round(QUEUED_S / seconds))
    return max(1, queued, min(20_000, round(block_s / seconds)))


def _record(rounds: list[tuple[Reading, Reading]], calls: int) -> Measurement:
    on_device = rounds[0][0].device_s is not None
    return Measurement(
        candidate_s=tuple(c.wall_s for c, _ in rounds),
        baseline_s=tuple(b.wall_s for _, b in rounds),
        calls_per_round=calls,
        candidate_device_s=tuple(c.device_s or 0.0 for c, _ in rounds) if on_device else (),
        baseline_device_s=tuple(b.device_s or 0.0 for _, b in rounds) if on_device else (),
    )
