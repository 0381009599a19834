"""Judge whether a plan became slower than when it was locked, from locked intervals without samples.

As in `torchwise compare`, a plan is slower only if its time per call and its speed-up over eager both became worse. The
whole interval of each must be beyond the threshold. A slower machine slows both the plan and eager. If eager became
faster, that is no regression of the plan. But a plan that is clearly slower than eager now counts as slower, regardless
of its own time. If the intervals are too wide, or eager was disturbed, the result is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.records import Interval, Measurement
from torchwise.records import format as show
from torchwise.records.answer import THRESHOLD as THRESHOLD
from torchwise.records.answer import Answer, all_of, any_of
from torchwise.records.answer import Judge as TimeJudge
from torchwise.records.measurement import INTERFERENCE_FACTOR
from torchwise.records.statistics import CONFIDENCE, ratio_of
from torchwise.study.lock.entry import Entry


@dataclass(frozen=True, slots=True)
class Judgement:
    """Change of a plan's speed.

    Attributes:
        slower: whether it became slower, which fails a check.
        detail: the figures, as text.
        speedup: the speed-up now over the locked one.
        time: the time per call now over the locked one, or None if none is locked.
    """

    slower: Answer
    detail: str
    speedup: Interval
    time: Interval | None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges speed.

    Attributes:
        count: number of plans that are judged together. All of their intervals hold together with 95 % (Bonferroni).
        threshold: relative change to ignore.
    """

    count: int
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        self._rule()  # which refuses an invalid threshold

    @property
    def confidence(self) -> float:
        """Confidence of each single interval."""
        return 1 - (1 - CONFIDENCE) / max(self.count, 1)

    def compare(self, entry: Entry, measured: Measurement) -> Judgement:
        """Compare a new measurement with the locked figures of a plan that is not eager."""
        locked = entry.decision.speedup
        assert locked is not None, "a plan that is not eager has a speed-up"
        now = measured.speedup
        speedup = ratio_of(now, locked, self.confidence)
        time = ratio_of(measured.candidate_time, entry.plan_s, self.confidence) if entry.plan_s else None
        detail = self._detail(locked, now, speedup, time)
        slower = self._slower(locked, now, speedup, time)
        locked_s = entry.decision.baseline_s
        if locked_s and (factor := measured.baseline_time.mid / locked_s) > INTERFERENCE_FACTOR:
            # A disturbance of eager does not affect the plan in the same way, so their ratio has no meaning.
            detail += f". Eager was disturbed: it took {show.ratio(factor)} its time at locking"
            slower = Answer.INCONCLUSIVE
        return Judgement(slower, detail, speedup, time)

    def _slower(self, locked: Interval, now: Interval, speedup: Interval, time: Interval | None) -> Answer:
        rule = self._rule()
        lost = all_of(rule.fell(speedup), rule.grew(time) if time else Answer.YES)
        return any_of(lost, rule.fell(now) if locked.high >= 1 else Answer.NO)

    def _rule(self) -> TimeJudge:
        return TimeJudge(self.threshold, self.confidence)

    def _detail(self, locked: Interval, now: Interval, speedup: Interval, time: Interval | None) -> str:
        change = f"its speed-up over eager changed by {show.speedup(speedup)}"
        values = f"from {show.speedup(locked)} when locked to {show.speedup(now)} now"
        each = f", its time per call by {show.speedup(time)}" if time else ""
        return f"{change}, {values}{each}"
