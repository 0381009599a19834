"""Answers to questions about measurements: yes, no or inconclusive, with how far the measurements can be trusted.

Every command that draws a conclusion from times draws it here. So a result that is inconclusive for one command is
inconclusive for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from torchwise.records.statistics import MAX_HALF_WIDTH, Interval

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
    """Return how far an output's ratios can be trusted.

    Args:
        ratios: the intervals of all ratios that the output shows.
        causes: causes of disturbance, such as "another program held 1 of 2 cores". The first is quoted.
        observed: the intervals that show how disturbed measuring was. Give them if the shown intervals are wider, since
            those include the spread between processes on the quietest machine.
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
        return Trust(
            Reliability.UNUSABLE, f"The measurements are too uncertain{cause}; {share} cannot be told.", typical
        )
    width = f"ratios hold within about ±{typical:.1%}" if len(widths) > 1 else f"the ratio holds within ±{typical:.1%}"
    if observed_widths[len(observed_widths) // 2] > QUIET_HALF_WIDTH or unusable:
        left = f"; {unusable} of {len(widths)} cannot be told" if unusable else ""
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
