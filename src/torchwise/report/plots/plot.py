"""Definition of a plot, and the choice of candidates to draw."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.records import Measurement, Outcome, Study
from torchwise.report.trial_table import Row, rows

MAX_COUNT = 12
"""Maximum candidates in one plot. The table of candidates holds the others."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure of the page.

    Attributes:
        key: short name, unique on the page.
        title: its subject.
        summary: its message in a sentence, which screen readers use.
        caption: explanation of its elements.
        svg: the drawing, safe to insert into a page.
        header: of the table behind it.
        table: the data drawn, as text.
    """

    key: str
    title: str
    summary: str
    caption: str
    svg: str
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One candidate with samples, and its colour in every plot: decided accent, eager neutral."""

    row: Row
    measurement: Measurement
    color: str

    @property
    def is_verified(self) -> bool:
        """Whether it may be compared: eager, or a plan that was verified and timed to the end."""
        return self.row.standing != "ineligible"

    @property
    def is_right(self) -> bool:
        """Whether its answers passed verification. A plan that was stopped early may have passed."""
        return self.row.trial is None or self.row.outcome is Outcome.PASS

    @property
    def is_ranked(self) -> bool:
        """Whether it may be called the fastest: verified, with a speed-up that is not too uncertain."""
        return self.is_verified and (self.row.speedup is None or self.row.speedup.is_usable)


def series_of(study: Study) -> list[Series]:
    """Return eager and the timed candidates, best first, up to a plot's limit, or none if nothing was timed."""
    from torchwise.report.plots.svg import COLORS, NEUTRAL

    own = study.eager
    timed = [(row, row.trial.measurement) for row in rows(study) if row.time and row.trial and row.trial.measurement]
    timed.sort(key=lambda pair: -(pair[0].speedup.mid if pair[0].speedup else 0.0))
    timed.sort(key=lambda pair: (not pair[0].is_decided, pair[0].standing == "ineligible"))
    eager = [Series(row, own, NEUTRAL) for row in rows(study) if row.trial is None and own.baseline_s]
    return eager + [Series(row, found, COLORS[i % len(COLORS)]) for i, (row, found) in enumerate(timed[:MAX_COUNT])]
