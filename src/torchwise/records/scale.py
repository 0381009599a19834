"""The rows of a benchmark on one scale, so that no two figures of an output disagree, and the batch sizes that fitted.

Each contender is timed against eager in a process of its own, and eager's time differs from one to the next. The pairs
give the row's speed-up. Its time per call is eager's overall time, divided by that speed-up. If Torchwise and its rival
were timed in one process, that duel gives their ratio, and their speed-ups over eager agree with it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.answer import Answer, Trust, exceeds, judge_trust
from torchwise.records.benchmark import EAGER, Benchmark, Peaks, Row
from torchwise.records.codec import Document
from torchwise.records.format import count
from torchwise.records.processes import is_level_across
from torchwise.records.statistics import Amount, Count, Interval, Positive, ratio_of
from torchwise.records.trial import eager_peak_memory

EXACT = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class ScaledRow:
    """The figures of one timed row: speed-up over eager, 1 for eager itself, and eager's seconds per call over that."""

    row: Row
    speedup: Interval
    time: Interval

    @property
    def is_surely_faster(self) -> Answer:
        """Whether it is faster than eager. For eager, whether its time is certain enough."""
        if self.row.contender == EAGER:
            return Answer.YES if _eager_self_ratio(self.row).is_usable else Answer.INCONCLUSIVE
        answer = exceeds(self.speedup)
        is_settled = answer is not Answer.INCONCLUSIVE or self.row.is_faster is not Answer.NO
        return answer if is_settled else Answer.NO  # a single quiet process may say no

    @property
    def is_inconclusive(self) -> bool:
        """Whether the measurements cannot tell if it is faster than eager."""
        return self.is_surely_faster is Answer.INCONCLUSIVE

    def roofline_share(self, peaks: Peaks | None) -> float | None:
        """Return the minimum time over the row's: 1 is the roofline, or None if either is unknown."""
        found = self.row.performance
        if peaks is None or found is None or found.roofline is None or not self.time.is_usable:
            return None
        return peaks.least_s(found.roofline, found.dtype) / self.time.mid


@dataclass(frozen=True, slots=True)
class Scale:
    """All timed rows of one target, with eager's seconds per call: the median over the processes that timed it.

    Eager's time and the bytes at the peak of its call are None if unknown.
    """

    eager_s: float | None
    eager_memory: int | None
    rows: tuple[ScaledRow, ...]

    def find_scaled(self, row: Row) -> ScaledRow | None:
        """Return the figures of a row, or None if it was not timed."""
        return next((found for found in self.rows if found.row is row), None)

    def leads_others(self, row: Row, excluded: Row) -> bool:
        """Whether a row has the highest speed-up of the right rows of its level, without the excluded row."""
        others = [one for one in self.rows if one.row.is_right and one.row.level == row.level]
        others = [one for one in others if one.row is not excluded and one.speedup.is_usable]
        return max(others, key=lambda one: one.speedup.mid, default=None) is self.find_scaled(row)

    def duel_ratio(self, row: Row) -> Interval | None:
        """Return Torchwise's speed over its rival's. If that is eager, all processes that timed the two count."""
        scaled = self.find_scaled(row)
        is_timed = any(one.row.contender == EAGER and one.row.is_right for one in self.rows)
        if row.duel is None or row.rival != EAGER or not is_timed or scaled is None:
            return row.speed_over_rival
        return scaled.speedup

    def duel_answer(self, row: Row) -> Answer:
        """Answer whether Torchwise is faster than its rival. NO if it is slower or as fast, or without a duel."""
        ratio = self.duel_ratio(row)
        if ratio is None or row.is_its_rival or is_level_across(row.duels, row.workload.device):
            return Answer.NO
        return surely_faster(ratio)

    def best(self) -> dict[str, Row]:
        """Return the fastest right row of each level, unless that is inconclusive. Levels never mix."""
        right = [found for found in self.rows if found.row.is_right]
        levels = dict.fromkeys(found.row.level for found in right)
        best = {name: _best([found for found in right if found.row.level == name]) for name in levels}
        return {name: row for name, row in best.items() if row is not None}


def surely_faster(ratio: Interval) -> Answer:
    """Answer whether a ratio is above 1. NO if it is below or close to it, INCONCLUSIVE if it may be either."""
    ahead, behind = exceeds(ratio), exceeds(ratio.inverse)
    return Answer.NO if behind is Answer.YES else behind if behind is Answer.INCONCLUSIVE else ahead


def scale_of(benchmark: Benchmark, workload: WorkloadSpec) -> Scale:
    """Return the rows of one target on the scale of its eager."""
    rows = [row for row in benchmark.select_rows(workload) if row.performance]
    baselines = [one.baseline_time.mid for row in rows if row.performance for one in row.performance.processes]
    if not baselines:
        return Scale(None, None, ())
    eager_s = statistics.median(baselines)
    scaled = tuple(ScaledRow(row, speed, speed.inverse.times(eager_s)) for row, speed in _speedups(rows))
    return Scale(eager_s, _eager_memory(rows), scaled)


def trust_of(benchmark: Benchmark) -> Trust:
    """Return how far the figures of a benchmark can be trusted."""
    scaled = [found for workload in benchmark.workloads for found in scale_of(benchmark, workload).rows]
    ratios = [_eager_self_ratio(one.row) if one.row.contender == EAGER else one.speedup for one in scaled]
    ratios += [row.speed_over_rival for row in benchmark.rows if row.speed_over_rival]
    notes = [note for row in benchmark.rows for one in row.measurements for note in one.notes]
    observed = [ratio for row in benchmark.rows for ratio in row.observed]
    return judge_trust(ratios, notes, observed)


def with_trust(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the current trust in its figures, ready for writing."""
    return replace(benchmark, trust=trust_of(benchmark))


def _speedup(row: Row) -> Interval:
    assert row.speedup is not None, "only timed rows are scaled"
    return EXACT if row.contender == EAGER else row.speedup


def _eager_self_ratio(row: Row) -> Interval:
    """Return eager's ratio to itself, as wide as it is off: any distance from 1 is the clock's error."""
    assert row.speedup is not None, "only timed rows are scaled"
    return Interval(min(row.speedup.low, 1.0), row.speedup.mid, max(row.speedup.high, 1.0))


def _eager_memory(rows: Sequence[Row]) -> int | None:
    own = next((r.performance.costs.peak_memory for r in rows if r.contender == EAGER and r.performance), None)
    return eager_peak_memory(own, (row.performance.costs.baseline_peak_memory for row in rows if row.performance))


def _speedups(rows: list[Row]) -> list[tuple[Row, Interval]]:
    """Return the rows with their speed-ups. Those that met in one process agree with that duel."""
    found = [_speedup(row) for row in rows]
    for place, own in enumerate(rows):
        duel = own.speed_over_rival if own.is_right else None
        rival = next((at for at, row in enumerate(rows) if row.contender == own.rival and row.is_right), None)
        if duel is not None and duel.is_usable and rival is not None:
            found[place], found[rival] = _reconcile(found[place], found[rival], duel)
    return list(zip(rows, found, strict=True))


def _reconcile(own: Interval, rival: Interval, duel: Interval) -> tuple[Interval, Interval]:
    """Return two speed-ups over eager whose ratio is that of the duel.

    There are two estimates of each: its own, and the one from the other's speed-up and the duel. The result is their
    geometric mean, with an interval that holds both intervals. If processes contradict each other, none of their
    intervals holds by itself.
    """
    by_rival, by_own = ratio_of(duel, rival.inverse), ratio_of(own, duel)
    if rival is EXACT:
        return (_enclose(duel.mid, own, duel) if own.is_usable else duel), EXACT
    if own.is_usable and rival.is_usable:
        middle = math.sqrt(own.mid * rival.mid * duel.mid)
        return _enclose(middle, own, by_rival), _enclose(middle / duel.mid, rival, by_own)
    if rival.is_usable:
        return by_rival, rival
    return (own, by_own) if own.is_usable else (own, rival)


def _enclose(mid: float, *estimates: Interval) -> Interval:
    return Interval(min(one.low for one in estimates), mid, max(one.high for one in estimates))


def _best(right: list[ScaledRow]) -> Row | None:
    """Return the row with the highest speed-up, or None if that is inconclusive."""
    best = max((one for one in right if one.speedup.is_usable), key=lambda one: one.speedup.mid, default=None)
    if best is None or best.is_surely_faster is not Answer.YES:
        return None
    if any(may_be_faster(other, best) for other in right if other is not best):
        return None
    own = next((one.row for one in right if (met := one.row.speed_over_rival) and met.is_usable), None)
    if own is not None and best.row.contender not in (own.contender, own.rival):
        return None  # the duel was between other rows: one of the two findings is wrong
    return best.row


def may_be_faster(other: ScaledRow, best: ScaledRow) -> bool:
    """Whether another row may be faster: it is not known to be slower or as fast."""
    for one, rival, inverse in ((best.row, other.row, False), (other.row, best.row, True)):
        ratio = one.speed_over_rival
        if ratio is not None and one.rival == rival.contender and ratio.is_usable:
            ratio = ratio.inverse if inverse else ratio
            return exceeds(ratio) is Answer.INCONCLUSIVE
    return exceeds(ratio_of(best.speedup, other.speedup)) is Answer.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class SizeTried:
    """One batch size.

    Attributes:
        samples_per_s: throughput at this size, or None if it failed.
        peak_memory: bytes at the peak of a call, beyond those held before it, or None if unknown.
        problem: why it does not fit, or empty if it does.
    """

    size: Positive
    samples_per_s: Amount | None = None
    peak_memory: Count | None = None
    problem: str = ""

    def __str__(self) -> str:
        speed = "" if self.samples_per_s is None else f"{count(self.samples_per_s)} samples a second"
        return ", but ".join(filter(None, (speed, self.problem)))


@dataclass(frozen=True, slots=True)
class BatchFit(Document):
    """Result of the search for a batch size.

    Attributes:
        target: the target that was run.
        plan: the plan that it ran with.
        tried: every size tried, smallest first.
        memory_limit: bytes that a call might take, or None for all that the device has.
        latency_limit: seconds within which a batching server answers a request, or None for no limit.
    """

    target: str
    plan: Plan
    tried: tuple[SizeTried, ...]
    memory_limit: Count | None = None
    latency_limit: Amount | None = None
    schema: str = "torchwise.batchfit/1"

    def __repr__(self) -> str:
        return f"<BatchFit of {self.target} under {self.plan}: largest {self.largest}, best {self.best}>"

    @property
    def largest(self) -> int | None:
        """The largest size that fitted, or None if none did."""
        return max((one.size for one in self.tried if not one.problem), default=None)

    @property
    def best(self) -> int | None:
        """The size that fitted and had the highest throughput, or None if none did."""
        fitting = [one for one in self.tried if not one.problem and one.samples_per_s is not None]
        return max(fitting, key=lambda one: one.samples_per_s or 0.0).size if fitting else None
