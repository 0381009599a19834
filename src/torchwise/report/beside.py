"""Two studies side by side: in what they differ, and what became of each plan that both tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchwise.records import Interval, Measurement, Study
from torchwise.records.statistics import CONFIDENCE
from torchwise.report import format as show
from torchwise.report.judged import THRESHOLD, Change, Judge
from torchwise.report.rows import Row, rows
from torchwise.report.template import Theme, render_part

TEMPLATE = "beside.html.j2"


@dataclass(frozen=True, slots=True)
class PlanBeside:
    """One plan in both studies, or in one of them.

    Attributes:
        name: the plan in words.
        first: its row in the first study; None where that did not try it.
        second: likewise.
        change: from the first to the second.
        time: the second's time per call over the first's; None where it was not proven and timed in both.
    """

    name: str
    first: Row | None
    second: Row | None
    change: Change
    time: Interval | None = None


def differences(first: Study, second: Study) -> list[str]:
    """Say in what two studies and their decisions differ, a line for each; figures of unlike machines say little."""
    lines = [
        f"environment: {line.replace(' there,', ' first,').replace(' here', ' second')}"
        for line in first.environment.differences(second.environment)
    ]
    pairs = [
        ("target", first.workload.target, second.workload.target),
        ("device", first.workload.device, second.workload.device),
        ("calls", first.workload.calls, second.workload.calls),
        ("restarts", first.workload.restarts, second.workload.restarts),
        ("model and inputs", first.inspection.identity, second.inspection.identity),
        ("plan", *(str(study.decision.plan) if study.decision else "undecided" for study in (first, second))),
        ("speed-up", _speedup(first), _speedup(second)),
    ]
    return lines + [f"{name}: {one} first, {other} second" for name, one, other in pairs if one != other]


def _speedup(study: Study) -> str:
    return str(study.decision.speedup) if study.decision and study.decision.speedup else "none"


def beside(first: Study, second: Study) -> list[PlanBeside]:
    """Return every plan of either study: those in both first, what changed most on top."""
    one, other = ({row.plan: row for row in rows(study)} for study in (first, second))
    shared = [plan for plan in one if plan in other]
    timed = sum(measured(one[plan], first) is not None for plan in shared)
    judge = Judge(THRESHOLD, 1 - (1 - CONFIDENCE) / max(timed, 1))
    found = [_both(judge, (first, one[plan]), (second, other[plan])) for plan in shared]
    found.sort(key=lambda line: -abs(1 - line.time.mid) if line.time else 0.0)
    found += [PlanBeside(row.name, row, None, Change.NOT_COMPARED) for plan, row in one.items() if plan not in other]
    found += [PlanBeside(row.name, None, row, Change.NOT_COMPARED) for plan, row in other.items() if plan not in one]
    return found


def render_beside(first: Study, second: Study, theme: Theme) -> str:
    """Return two studies side by side as a part of a page; see `template.render_part`."""
    plans = beside(first, second)
    return render_part(
        TEMPLATE,
        theme,
        first=first,
        second=second,
        differences=differences(first, second),
        plans=plans,
        summary=summary(plans),
    )


def measured(row: Row, study: Study) -> Measurement | None:
    """Return the measurement of a row where it can be compared: of eager, or of a plan that was proven."""
    if row.trial is None:
        own = study.eager
        return replace(own, candidate_s=own.baseline_s) if own.baseline_s else None
    return row.trial.measurement if row.trial.is_proven else None


def _both(judge: Judge, before: tuple[Study, Row], after: tuple[Study, Row]) -> PlanBeside:
    (first, one), (second, other) = before, after
    a, b = measured(one, first), measured(other, second)
    if a and b:
        found = judge.judge(a, b, eager=one.trial is None)
        return PlanBeside(one.name, one, other, found.change, found.time)
    change = Change.WRONG if a else Change.RIGHT if b else Change.NOT_COMPARED
    if a and other.verdict != "failed":  # it died, took too long, or was stopped early
        change = Change.LOST
    return PlanBeside(one.name, one, other, change)


def summary(plans: list[PlanBeside]) -> str:
    """Return what it comes to, in a line."""
    shared = [line for line in plans if line.first and line.second]
    counts = {change: sum(line.change is change for line in shared) for change in Change}
    words = [f"{count} {change}" for change, count in counts.items() if count]
    return f"{show.counted(len(shared), 'plan')} in both: {', '.join(words)}." if shared else "No plan is in both."
