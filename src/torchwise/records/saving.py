"""Savings of a fix per call: between nothing and the whole call, or nothing that could be measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from torchwise.records import format as show
from torchwise.records.answer import QUIET_HALF_WIDTH, Answer
from torchwise.records.statistics import MAX_HALF_WIDTH, Interval

UNMEASURED = "could not be measured"


class Basis(StrEnum):
    """How a saving is known."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    INCONCLUSIVE = "inconclusive"
    """It was timed, but the machine was too busy to tell: it may be anything from nothing to the whole call."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Potential saving of a fix. `make_saving` and `clamp_saving` hold it between 0 and the call's own time.

    Attributes:
        per_call_s: seconds per call, below 0 if the fix surely costs time.
        basis: timed with and without, worked out, or timed without a result.
        how: explanation of its source.
        once_s: seconds saved once in each process, such as those of compiling again.
    """

    per_call_s: Interval
    basis: Basis
    how: str
    once_s: float = 0.0

    @property
    def answer(self) -> Answer:
        """Whether each call surely becomes quicker."""
        if self.basis is Basis.INCONCLUSIVE:
            return Answer.INCONCLUSIVE
        return Answer.YES if self.per_call_s.low > 0 else Answer.NO

    @property
    def is_ranked(self) -> bool:
        """Whether anything is known that it can be ranked by."""
        return self.basis is not Basis.INCONCLUSIVE or self.once_s > 0

    @property
    def is_gain(self) -> bool:
        """Whether a positive saving was measured, so that it may be shown in green."""
        return self.basis is Basis.MEASURED and (self.answer is Answer.YES or self.once_s > 0)

    def average_saving_s(self, calls: int) -> float:
        """Return the seconds saved over this many calls, including those saved once.

        A measured saving that does not show counts as nothing: its middle is noise.
        """
        shows = self.answer is Answer.YES or self.per_call_s.high < 0 or self.basis is Basis.ESTIMATED
        return (self.per_call_s.mid if shows else 0.0) + self.once_s / calls


def make_saving(share: Interval, call_s: float, how: str, once_s: float = 0.0) -> Saving:
    """Return the saving of a fix that was timed to save this share of a call: below 0 if it takes longer.

    An interval that is too wide to name a figure is inconclusive, and so is one that holds 0 and is not narrow.
    """
    half = (share.high - share.low) / 2
    holds_zero = share.low <= 0 <= share.high
    if half > MAX_HALF_WIDTH * max(1.0, 1 - share.mid) or (holds_zero and half > QUIET_HALF_WIDTH):
        return Saving(Interval(0.0, 0.0, call_s), Basis.INCONCLUSIVE, how, once_s)
    saved = Interval(*(call_s * each for each in (share.low, share.mid, share.high)))
    return clamp_saving(Saving(saved, Basis.MEASURED, how, once_s), call_s)


def clamp_saving(saving: Saving, call_s: float) -> Saving:
    """Return a saving between 0 and the call's time. One that surely costs time stays below 0."""
    saved = saving.per_call_s
    if saved.high < 0:
        return saving
    low, mid, high = (min(max(each, 0.0), call_s) for each in (saved.low, saved.mid, saved.high))
    return replace(saving, per_call_s=Interval(low, mid, high))


def withhold(saving: Saving, call_s: float) -> Saving:
    """Return a saving that says only that it could not be measured."""
    return replace(saving, per_call_s=Interval(0.0, 0.0, call_s), basis=Basis.INCONCLUSIVE)


def describe_saving(found: Saving | None) -> str:
    """Return such as "saves 12.3 µs per call [11.9, 12.8], measured". A saving that may be zero is not claimed."""
    if found is None:
        return "saving unknown"
    once = f"saves {show.seconds(found.once_s)} once in each process" if found.once_s else ""
    if found.answer is Answer.INCONCLUSIVE:
        return f"{once}, measured. Its saving per call {UNMEASURED}" if once else UNMEASURED
    is_once_alone = bool(once) and found.per_call_s.high == 0
    words = [once] if is_once_alone else [_each_call(found), *([once] if once else [])]
    return f"{' and '.join(words)}, {found.basis.value}"


def _each_call(found: Saving) -> str:
    saved = found.per_call_s
    if saved.high == 0:
        return "saves nothing"
    if saved.low > 0:
        return f"saves {show.seconds(saved.mid)} per call {_ends(saved)}"
    if saved.high < 0:
        return f"costs {show.seconds(-saved.mid)} per call {_ends(Interval(-saved.high, -saved.mid, -saved.low))}"
    prefix = "saves nothing measurable: at most" if found.basis is Basis.MEASURED else "saves at most"
    return f"{prefix} {show.seconds(saved.high)} per call"


def _ends(interval: Interval) -> str:
    return f"[{show.seconds(interval.low)}, {show.seconds(interval.high)}]"
