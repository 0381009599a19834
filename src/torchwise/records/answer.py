"""Answers to questions about measurements: yes, no or inconclusive, how far to trust them, and whether a time changed.

Every command that draws a conclusion from times draws it here. So a result that is inconclusive for one command is
inconclusive for all.

A plan became slower only if both its time per call and its time relative to eager grew beyond the threshold. A slower
machine slows both the plan and eager. If eager became faster, that is no regression of the plan. Eager itself is judged
by time alone, and its changes are called drift. If the intervals are too wide, the change is inconclusive, and never
"same".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from torchwise.errors import InputError
from torchwise.records.statistics import MAX_HALF_WIDTH, Interval, ratio_of

EXIT_INCONCLUSIVE = 4
"""Exit code of a command whose question the measurements could not answer."""
QUIET_HALF_WIDTH = 0.05
"""Relative half-width up to which measurements count as undisturbed."""


class Answer(StrEnum):
    """The answer of a measurement to a question."""

    YES = "yes"
    NO = "no"
    INCONCLUSIVE = "inconclusive"


class Reliability(StrEnum):
    """How far the measurements behind one output can be trusted."""

    GOOD = "good"
    LIMITED = "limited"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Trust:
    """How far the figures of one output can be trusted.

    Attributes:
        reliability: in one word, for programs.
        sentence: for people, shown at the top of the output.
        half_width: typical relative half-width of the ratios' intervals, or None if nothing was timed.
    """

    reliability: Reliability
    sentence: str
    half_width: float | None = None


def exceeds(ratio: Interval, bound: float = 1.0) -> Answer:
    """Answer whether a ratio is above a bound: inconclusive if its interval holds the bound, or names no figure.

    A wide interval whose low end is above the bound is a yes. A wide interval below the bound is a no.
    """
    if ratio.low > bound:
        return Answer.YES
    if ratio.high <= bound:
        return Answer.NO
    return Answer.INCONCLUSIVE if ratio.half_width > QUIET_HALF_WIDTH else Answer.NO


def all_of(*answers: Answer) -> Answer:
    """Answer whether all hold: one no settles it, even if others are inconclusive."""
    if Answer.NO in answers:
        return Answer.NO
    return Answer.INCONCLUSIVE if Answer.INCONCLUSIVE in answers else Answer.YES


def any_of(*answers: Answer) -> Answer:
    """Answer whether any holds: one yes settles it, even if others are inconclusive."""
    if Answer.YES in answers:
        return Answer.YES
    return Answer.INCONCLUSIVE if Answer.INCONCLUSIVE in answers else Answer.NO


def judge_trust(
    ratios: Iterable[Interval], causes: Iterable[str] = (), observed: Iterable[Interval] | None = None
) -> Trust:
    """Return how far an output's ratios can be trusted. The first of the causes of disturbance is quoted.

    Give the observed intervals too if the shown ones are wider, as those include the spread between processes on the
    quietest machine.
    """
    widths = sorted(ratio.half_width for ratio in ratios)
    if not widths:
        return Trust(Reliability.UNUSABLE, "Nothing was timed.")
    observed_widths = widths if observed is None else sorted(ratio.half_width for ratio in observed)
    typical = widths[len(widths) // 2]
    unusable = sum(width > MAX_HALF_WIDTH for width in widths)
    cause = next((f": {text}" for text in causes), "")
    if typical > MAX_HALF_WIDTH:
        share = f"{unusable} of {len(widths)} ratios" if len(widths) > 1 else "the ratio"
        # Not always the machine's fault: processes of one plan may contradict each other on a quiet one.
        sentence = f"The measurements are too uncertain{cause}; {share} {_call_range(unusable)}."
        return Trust(Reliability.UNUSABLE, sentence, typical)
    width = f"ratios hold within about ±{typical:.1%}" if len(widths) > 1 else f"the ratio holds within ±{typical:.1%}"
    if observed_widths[len(observed_widths) // 2] > QUIET_HALF_WIDTH or unusable:
        left = f"; {unusable} of {len(widths)} {_call_range(unusable)}" if unusable else ""
        return Trust(
            Reliability.LIMITED,
            f"The machine was disturbed{cause}; {width}, times only as long as it is{left}.",
            typical,
        )
    if cause:
        return Trust(
            Reliability.GOOD, f"{width[0].upper()}{width[1:]}, though the machine was not idle{cause}.", typical
        )
    return Trust(Reliability.GOOD, f"The machine was quiet: {width}.", typical)


def _call_range(count: int) -> str:
    """Say that ratios have no figure. A range may still show which side is faster."""
    return "is only a range" if count == 1 else "are only ranges"


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
    """The figures of one run: seconds per call on the scale of the output's times, and speed-up over eager."""

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

    The threshold is the relative change to ignore: 0.05 is 5 %. The confidence is that of each interval. See `ratio_of`
    for several that must hold together.
    """

    threshold: float
    confidence: float

    def __post_init__(self) -> None:
        """Refuse an invalid threshold."""
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
