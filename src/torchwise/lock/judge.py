"""Whether a plan became slower than it was when it was locked, from what is locked: intervals, and no samples.

As in `torchwise compare`, a plan is slower only where both its time per call and its speed-up over eager became worse
beyond the threshold, with their whole intervals: a slower machine slows both it and eager, and eager that became faster
is no regression of the plan. But a plan that eager has surely overtaken since is slower whatever its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torchwise.errors import InputError
from torchwise.lock.entry import Entry
from torchwise.records import Interval, Measurement
from torchwise.records.statistics import CONFIDENCE
from torchwise.report import format as show

THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a plan's speed.

    Attributes:
        is_slower: whether that fails a check.
        detail: the figures, in words.
        speedup: the speed-up now over the one that is locked.
        time: the time per call, likewise; None where none is locked.
    """

    is_slower: bool
    detail: str
    speedup: Interval
    time: Interval | None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges speed.

    Attributes:
        count: plans that are judged together: of their intervals all hold with 95 % (Bonferroni).
        threshold: relative change that is not worth a word.
    """

    count: int
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < math.inf:
            raise InputError(f"threshold is {self.threshold}, but must be at least 0: 0.05 is 5 %")

    @property
    def confidence(self) -> float:
        """Of every interval by itself."""
        return 1 - (1 - CONFIDENCE) / max(self.count, 1)

    def of(self, entry: Entry, measured: Measurement) -> Judgement:
        """Hold what was measured against what is locked of a plan that is not eager."""
        locked = entry.decision.speedup
        assert locked is not None, "a plan that is not eager has a speed-up"
        speedup = ratio_of(measured.speedup, locked, self.confidence)
        time = ratio_of(measured.candidate_time, entry.plan_s, self.confidence) if entry.plan_s else None
        lost = self._is_below(speedup) and (time is None or time.low > 1 + self.threshold)
        overtaken = self._is_below(measured.speedup) and locked.high >= 1
        return Judgement(lost or overtaken, self._detail(locked, measured, speedup, time), speedup, time)

    def _is_below(self, ratio: Interval) -> bool:
        return ratio.high < 1 / (1 + self.threshold)

    def _detail(self, locked: Interval, measured: Measurement, speedup: Interval, time: Interval | None) -> str:
        now = f"{show.speedup(measured.speedup)} eager's speed now, {show.speedup(locked)} locked"
        each = f", and {show.speedup(time)} of its time per call" if time else ""
        return f"{now}: {show.speedup(speedup)} of that{each}"


def ratio_of(now: Interval, then: Interval, confidence: float = CONFIDENCE) -> Interval:
    """Return `now` over `then` with its interval, from two independent estimates above 0 with their 95 % intervals.

    On the scale of logarithms a ratio is a difference, and the arms of two intervals add up by their squares; for
    another confidence they are stretched as those of a normal distribution are.

    Source: Zou & Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27 (2008).
    """
    tail, usual = (1 - confidence) / 2, (1 - CONFIDENCE) / 2
    stretch = NormalDist().inv_cdf(1 - tail) / NormalDist().inv_cdf(1 - usual)
    mid = now.mid / then.mid
    down = math.hypot(math.log(now.mid / now.low), math.log(then.high / then.mid))
    up = math.hypot(math.log(now.high / now.mid), math.log(then.mid / then.low))
    return Interval(mid * math.exp(-stretch * down), mid, mid * math.exp(stretch * up))
