"""Results of a check, section by section, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchwise.records import Interval
from torchwise.records.answer import EXIT_INCONCLUSIVE, Trust
from torchwise.records.codec import Document
from torchwise.records.statistics import Amount, Share

SCHEMA = "torchwise.check/1"


class State(StrEnum):
    """Result of a section's check."""

    STALE = "stale"
    WRONG = "wrong"
    LOST = "lost"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    UNKNOWN = "not checked"
    GOOD = "good"
    ELSEWHERE = "other hardware"

    @property
    def is_regression(self) -> bool:
        """Whether it fails a check."""
        return self in (State.STALE, State.WRONG, State.LOST, State.SLOWER)


@dataclass(frozen=True, slots=True)
class Checked:
    """One section.

    Attributes:
        target: target of the section.
        mode: mode of the section.
        hardware: hardware of the section, as text.
        state: the result.
        detail: the figures or the reason, as text.
        way_out: command or action to take, or empty if none is needed.
        plan: the plan as text, or empty if there is no such section.
        locked: the locked speed-up over eager, or None for eager, whose plans are not timed.
        found: the speed-up measured now, or None if it was not measured.
        speedup: `found` over `locked`, or None if either is.
        time: the plan's time per call now over the locked one, or None likewise.
        notes: disturbances of the measurement.
    """

    target: str
    mode: str
    hardware: str
    state: State
    detail: str
    way_out: str = ""
    plan: str = ""
    locked: Interval | None = None
    found: Interval | None = None
    speedup: Interval | None = None
    time: Interval | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check(Document):
    """A lock file, checked on one machine.

    Attributes:
        rows: every requested section, and every named target that has no section for this machine.
        threshold: the relative change beyond which a plan is slower: 0.05 is 5 %.
        confidence: of each single interval, so that all of them hold together with 95 %.
        trust: reliability of the new measurements, or None if there were none, or for checks of earlier versions.
    """

    rows: tuple[Checked, ...]
    threshold: Amount
    confidence: Share
    trust: Trust | None = None
    schema: str = SCHEMA

    def select_rows(self, state: State) -> tuple[Checked, ...]:
        """Return the rows of one state."""
        return tuple(row for row in self.rows if row.state is state)

    @property
    def exit_code(self) -> int:
        """The first code that applies.

        1 if anything is stale, wrong, lost or slower. 2 if something was not checked, or nothing is for this machine. 4
        if the measurements cannot tell. 0 if all is as locked.
        """
        if any(row.state.is_regression for row in self.rows):
            return 1
        if self.select_rows(State.UNKNOWN) or not (
            self.select_rows(State.GOOD) or self.select_rows(State.INCONCLUSIVE)
        ):
            return 2
        return EXIT_INCONCLUSIVE if self.select_rows(State.INCONCLUSIVE) else 0
