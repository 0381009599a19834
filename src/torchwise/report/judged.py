"""What became of a time from one run to another, beyond the noise and beyond what the machine itself did.

A plan became slower only where both its time per call and its time relative to eager grew beyond the threshold: a
slower machine slows both it and eager, and eager that became faster is no regression of the plan. Eager itself is
judged by time alone, and what changed is called drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchwise.records import Interval, Measurement
from torchwise.records.statistics import unpaired_ratio_interval

THRESHOLD = 0.05


class Change(StrEnum):
    """What became of something that was measured before and after."""

    SLOWER = "slower"
    WRONG = "wrong"
    LOST = "lost"
    FASTER = "faster"
    RIGHT = "right"
    GAINED = "gained"
    DRIFT = "drift"
    SAME = "same"
    NOT_COMPARED = "not compared"

    @property
    def is_regression(self) -> bool:
        """Whether it fails a comparison."""
        return self in (Change.SLOWER, Change.WRONG, Change.LOST)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one time.

    Attributes:
        change: SLOWER, FASTER, DRIFT (the time changed, the speed-up over eager did not) or SAME.
        time: the later time per call over the earlier.
        speedup: the later speed-up over eager over the earlier.
    """

    change: Change
    time: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges by intervals, never by points.

    Attributes:
        threshold: the relative change that is not worth a word: 0.05 is 5 %.
        confidence: of each interval; see `unpaired_ratio_interval` for several that must hold together.
    """

    threshold: float
    confidence: float

    def judge(self, before: Measurement, after: Measurement, *, eager: bool = False) -> Judged:
        """Judge two timed measurements of one plan, or of eager against itself."""
        time = unpaired_ratio_interval(after.candidate_s, before.candidate_s, self.confidence)
        speedup = unpaired_ratio_interval(_speedups(after), _speedups(before), self.confidence)
        return Judged(self._change(time, speedup, eager), time, speedup)

    def _change(self, time: Interval, speedup: Interval, eager: bool) -> Change:
        above, below = self._is_above(time), self._is_below(time)
        if not eager and above and self._is_below(speedup):
            return Change.SLOWER
        if not eager and below and self._is_above(speedup):
            return Change.FASTER
        return Change.DRIFT if above or below else Change.SAME

    def _is_above(self, ratio: Interval) -> bool:
        return ratio.low > 1 + self.threshold

    def _is_below(self, ratio: Interval) -> bool:
        return ratio.high < 1 / (1 + self.threshold)


def _speedups(measured: Measurement) -> list[float]:
    return [eager / own for eager, own in zip(measured.baseline_s, measured.candidate_s, strict=True)]
