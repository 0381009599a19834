"""Studies side by side: two of them with the outcome of each plan, or all of a target with regressions marked.

A history goes over versions of torch, drivers and models, and compares each decision with the one before it. A line has
the comparable studies of one target: in one mode, for one objective, on one kind of hardware.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from torchwise.records import format as show
from torchwise.records.answer import THRESHOLD, Change, Judge, Judgement, Timing
from torchwise.records.candidates import Row, rows
from torchwise.records.scale import EXACT
from torchwise.records.statistics import CONFIDENCE, Interval
from torchwise.records.study import Study
from torchwise.records.verdict import Outcome


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """One plan in both studies, or in one of them.

    Attributes:
        first: its row in the first study, or None if that study did not try it.
        second: its row in the second study, or None likewise.
        time: the second's time per call over the first's, or None if it was not verified and timed in both.
    """

    name: str
    first: Row | None
    second: Row | None
    change: Change
    time: Interval | None = None
    figures: str = ""


def differences(first: Study, second: Study) -> list[str]:
    """Describe the differences between two studies and their decisions.

    Figures of different machines are hard to compare.
    """
    lines = [
        f"environment: {line}" for line in first.environment.describe_differences(second.environment, "first", "second")
    ]
    pairs = [
        ("target", first.workload.target, second.workload.target),
        ("device", first.workload.device, second.workload.device),
        ("objective", first.workload.objective, second.workload.objective),
        ("calls", first.workload.calls, second.workload.calls),
        ("restarts", first.workload.restarts, second.workload.restarts),
        ("model and inputs", first.inspection.identity, second.inspection.identity),
        ("plan", *(str(study.decision.plan) if study.decision else "undecided" for study in (first, second))),
        ("speed-up", _speedup(first), _speedup(second)),
    ]
    return lines + [f"{name}: {one} first, {other} second" for name, one, other in pairs if one != other]


def _speedup(study: Study) -> str:
    return str(study.decision.speedup) if study.decision and study.decision.speedup else "none"


def incomparable(first: Study, second: Study) -> str:
    """Explain why times of two studies cannot be compared, or return an empty string if they can."""
    if first.inspection.identity != second.inspection.identity:
        return "they have different models or inputs"
    if first.workload.objective != second.workload.objective:
        return "they have different objectives, for which calls are timed differently"
    return ""


def compare_studies(first: Study, second: Study) -> list[PlanDiff]:
    """Return every plan of either study: those in both first, with the largest changes on top."""
    one, other = ({row.plan: row for row in rows(study)} for study in (first, second))
    shared = [plan for plan in one if plan in other]
    if incomparable(first, second):
        found = [PlanDiff(row.name, row, other.get(plan), Change.NOT_COMPARED) for plan, row in one.items()]
        return found + [_diff_of_one(None, row) for plan, row in other.items() if plan not in one]
    timed = sum(times_of(one[plan], first) is not None for plan in shared)
    judge = Judge(THRESHOLD, 1 - (1 - CONFIDENCE) / max(timed, 1))
    found = [_diff_of_both(judge, (first, one[plan]), (second, other[plan])) for plan in shared]
    found.sort(key=lambda line: -abs(1 - line.time.mid) if line.time else 0.0)
    found += [_diff_of_one(row, None) for plan, row in one.items() if plan not in other]
    return found + [_diff_of_one(None, row) for plan, row in other.items() if plan not in one]


def _diff_of_one(first: Row | None, second: Row | None) -> PlanDiff:
    row = first or second
    assert row is not None, "a plan is in one of the studies"
    return PlanDiff(row.name, first, second, Change.NOT_COMPARED)


def times_of(row: Row, study: Study) -> Timing | None:
    """Return the figures of a row if they can be compared: those of eager, or of a verified plan."""
    if row.trial is None:
        return Timing(study.eager.baseline_time, EXACT) if study.eager.baseline_s else None
    if row.speedup is None or row.trial.measurement is None or not row.trial.is_verified:
        return None
    return Timing(row.trial.measurement.candidate_time, row.speedup)


def figures_of(judgement: Judgement, *, eager: bool) -> str:
    """Describe the size of the change: of eager's time, or of a plan's speed-up."""
    return f"time {show.speedup(judgement.time)}" if eager else f"speed-up {show.speedup(judgement.speedup)}"


def _diff_of_both(judge: Judge, before: tuple[Study, Row], after: tuple[Study, Row]) -> PlanDiff:
    (first, one), (second, other) = before, after
    a, b = times_of(one, first), times_of(other, second)
    if a and b:
        judgement = judge.judge(a, b, eager=one.trial is None)
        return PlanDiff(
            one.name, one, other, judgement.change, judgement.time, figures_of(judgement, eager=one.trial is None)
        )
    change = Change.WRONG if a else Change.RIGHT if b else Change.NOT_COMPARED
    if a and other.outcome is not Outcome.FAIL:  # it died, took too long, or was stopped early
        change = Change.LOST
    return PlanDiff(one.name, one, other, change)


@dataclass(frozen=True, slots=True)
class Point:
    """One study of a line.

    Attributes:
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
    """The comparable studies of one target, oldest first. Its name has mode, objective and numerics."""

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
    changes = before.environment.describe_differences(after.environment, "before", "now")
    return Point(after, new, found.change, figures, ", ".join(changes))
