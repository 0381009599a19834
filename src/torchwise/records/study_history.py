"""History of a target from study to study, with regressions marked: over versions of torch, drivers and models.

Each decision is compared with the decision before it. A line has the comparable studies of one target: in one mode, for
one objective, on one kind of hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from torchwise.records.candidates import Row, rows
from torchwise.records.regression import THRESHOLD, Change, Judge
from torchwise.records.statistics import CONFIDENCE
from torchwise.records.study import Study
from torchwise.records.study_diff import figures_of, times_of
from torchwise.records.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Point:
    """One study of a line.

    Attributes:
        study: the study.
        row: the decided row.
        change: relative to the study before it, NOT_COMPARED for the first.
        figures: the figures of the change, as text.
        note: other changes, as text, or empty if there are none.
    """

    study: Study
    row: Row
    change: Change
    figures: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """The comparable studies of one target, oldest first.

    Attributes:
        name: mode, objective and numerics, as text.
        hardware: the machine, as text.
        points: one for each study.
    """

    name: str
    hardware: str
    points: tuple[Point, ...]

    @property
    def regressions(self) -> int:
        """Number of points that are worse than the one before."""
        return sum(point.change.is_regression for point in self.points)

    @property
    def inconclusive(self) -> int:
        """Number of points that are inconclusive."""
        return sum(point.change is Change.INCONCLUSIVE for point in self.points)


def history(studies: Iterable[Study]) -> list[Line]:
    """Return the lines of one target's studies, the longest first.

    Undecided studies are left out, and so are those that lack the decided trial.
    """
    groups: dict[tuple[str, str], list[Study]] = {}
    for study in sorted(studies, key=lambda study: study.created_at):
        if study.decision is not None and any(row.is_decided for row in rows(study)):
            spec = study.workload
            name = f"{spec.mode} for {spec.objective}, numerics up to {study.allow}"
            groups.setdefault((name, study.environment.limited_hardware), []).append(study)
    lines = [Line(name, hardware, _points(found)) for (name, hardware), found in groups.items()]
    return sorted(lines, key=lambda line: -len(line.points))


def _points(studies: list[Study]) -> tuple[Point, ...]:
    judge = Judge(THRESHOLD, 1 - (1 - CONFIDENCE) / max(len(studies) - 1, 1))
    first = Point(studies[0], _find_decided_row(studies[0]), Change.NOT_COMPARED, note="the first study")
    return (first, *(_point(judge, before, after) for before, after in pairwise(studies)))


def _find_decided_row(study: Study) -> Row:
    return next(row for row in rows(study) if row.is_decided)


def _point(judge: Judge, before: Study, after: Study) -> Point:
    old, new = _find_decided_row(before), _find_decided_row(after)
    if before.inspection.identity != after.inspection.identity:
        return Point(after, new, Change.NOT_COMPARED, note="the model or the inputs changed")
    a, b = times_of(old, before), times_of(new, after)
    if a is None or b is None:
        return Point(after, new, Change.NOT_COMPARED, note="not timed in both studies")
    is_eager = old.trial is None and new.trial is None
    found = judge.judge(a, b, eager=is_eager)
    figures = figures_of(found, eager=is_eager)
    refused = next((row for row in rows(after) if row.plan == old.plan and row.outcome is Outcome.FAIL), None)
    if refused:
        return Point(after, new, Change.WRONG, figures, f"{old.name} was verified before, and fails now: {refused.why}")
    return Point(after, new, found.change, figures, _describe_environment_changes(before, after))


def _describe_environment_changes(before: Study, after: Study) -> str:
    return ", ".join(before.environment.describe_differences(after.environment, "before", "now"))
