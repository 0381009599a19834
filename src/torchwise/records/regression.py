"""Judge the change of a time from one run to another, beyond the noise and beyond changes of the machine itself.

A plan became slower only if both its time per call and its time relative to eager grew beyond the threshold. A slower
machine slows both the plan and eager. If eager became faster, that is no regression of the plan. Eager itself is judged
by time alone, and its changes are called drift. If the intervals are too wide, the change is inconclusive, and never
"same".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from torchwise.errors import InputError
from torchwise.records.answer import Answer, all_of, any_of, exceeds
from torchwise.records.statistics import Interval, ratio_of

THRESHOLD = 0.05


class Change(StrEnum):
    """The kind of change between two measurements."""

    SLOWER = "slower"
    WRONG = "wrong"
    LOST = "lost"
    INCONCLUSIVE = "inconclusive"
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
class Timing:
    """The figures of one run.

    Attributes:
        time: seconds per call, on the scale of the times that the output shows.
        speedup: over eager.
    """

    time: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of one time's change.

    Attributes:
        change: SLOWER, FASTER, DRIFT (the time changed, the speed-up over eager did not), SAME or INCONCLUSIVE.
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
        threshold: the relative change to ignore: 0.05 is 5 %.
        confidence: of each interval. See `ratio_of` for several that must hold together.
    """

    threshold: float
    confidence: float

    def __post_init__(self) -> None:
        """Refuse an invalid threshold.

        Raises:
            InputError: it is not at least 0.
        """
        if not 0 <= self.threshold < math.inf:
            raise InputError(f"threshold is {self.threshold}, but must be at least 0: 0.05 is 5 %")

    def judge(self, before: Timing, after: Timing, *, eager: bool = False) -> Judgement:
        """Judge one plan in two runs, or eager against itself."""
        time = ratio_of(after.time, before.time, self.confidence)
        speedup = ratio_of(after.speedup, before.speedup, self.confidence)
        return Judgement(self._change(time, speedup, eager), time, speedup)

    def grew(self, ratio: Interval) -> Answer:
        """Answer whether a ratio of later over earlier is above 1, beyond the threshold."""
        return exceeds(ratio, 1 + self.threshold)

    def fell(self, ratio: Interval) -> Answer:
        """Answer whether it is below 1, beyond the threshold."""
        return self.grew(ratio.inverse)

    def _change(self, time: Interval, speedup: Interval, eager: bool) -> Change:
        moved = any_of(self.grew(time), self.fell(time))
        if eager:
            return {Answer.YES: Change.DRIFT, Answer.NO: Change.SAME}.get(moved, Change.INCONCLUSIVE)
        slower = all_of(self.grew(time), self.fell(speedup))
        faster = all_of(self.fell(time), self.grew(speedup))
        for answer, change in ((slower, Change.SLOWER), (faster, Change.FASTER)):
            if answer is Answer.YES:
                return change
        if any_of(slower, faster) is Answer.INCONCLUSIVE:
            return Change.INCONCLUSIVE
        return Change.DRIFT if moved is Answer.YES else Change.SAME
