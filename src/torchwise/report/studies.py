"""Stored records as parts of a page: studies, approvals, two studies side by side, and the history of a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from torchwise.records import Approval, Standing, Study, StudyState
from torchwise.records import format as show
from torchwise.records.answer import Change
from torchwise.records.candidates import Row as Candidate
from torchwise.records.study_diff import Line, PlanDiff, Point, compare_studies, differences, history, incomparable
from torchwise.report import document as doc
from torchwise.report.bench_files import render_csv
from torchwise.report.facts import when
from torchwise.report.html import Theme, render_part

if TYPE_CHECKING:
    from torchwise.store import StudySummary

STUDIES = (
    *doc.text_columns("study", "target", "where", "state", "trials", "plan"),
    doc.speedup_column(),
    *doc.text_columns("when"),
)
RAW = (
    *("study", "target", "mode", "device", "state", "trials", "plan"),
    *("speedup_ratio", "speedup_low_ratio", "speedup_high_ratio", "created_at"),
)
APPROVALS = doc.text_columns("plan", "status", "by", "reason", "time")


def progress(study: Study, now: float) -> str:
    """Describe the progress of a search in a sentence, at a time in seconds since the epoch."""
    finished = [trial for trial in study.trials if trial.state.is_finished]
    running = [
        f"{trial.plan} for {_format_elapsed(trial.started_at, now)}" for trial in study.trials if trial not in finished
    ]
    speedups = [trial.speedup for trial in finished if trial.is_verified and trial.speedup]
    best = max((speedup.mid for speedup in speedups if speedup.is_usable), default=0)
    none_yet = "no verified plan has a reliable speed-up yet" if speedups else "no plan is verified yet"
    parts = [
        f"{show.pluralize(len(finished), 'trial')} finished",
        f"running: {', '.join(running)}" if running else "no trial is running",
        f"the best plan so far is {show.ratio(best)} as fast as eager" if best else none_yet,
    ]
    return f"Searching for {_format_elapsed(study.created_at, now)}: {', '.join(parts)}."


def _format_elapsed(then: float, now: float) -> str:
    return show.seconds(max(now - then, 0.0)) if then > 0 else "some time"


class Order(StrEnum):
    """An order of studies."""

    NEWEST = "newest first"
    OLDEST = "oldest first"
    FASTEST = "largest speed-up first"
    SLOWEST = "smallest speed-up first"
    TARGET = "by target"


def select_studies(
    summaries: Iterable[StudySummary], since: date | None, until: date | None, order: Order
) -> list[StudySummary]:
    """Return the studies of these days (UTC), both included, in an order.

    Ordered by speed-up, those come last that have none, or one that is too uncertain for a figure.
    """
    found = [one for one in summaries if (since or date.min) <= _day_of(one) <= (until or date.max)]
    found.sort(key=lambda one: one.created_at, reverse=order is not Order.OLDEST)
    if order is Order.TARGET:
        found.sort(key=lambda one: one.target)
    elif order in (Order.FASTEST, Order.SLOWEST):
        sign = -1 if order is Order.FASTEST else 1
        found.sort(key=lambda one: sign * one.speedup.mid if one.speedup and one.speedup.is_usable else math.inf)
    return found


def _day_of(summary: StudySummary) -> date:
    return datetime.fromtimestamp(summary.created_at, UTC).date()


def to_csv(summaries: Iterable[StudySummary]) -> str:
    """Return a line for each study, with raw figures. Times are in UTC."""
    rows = tuple(doc.Row(_raw_cells(summary)) for summary in summaries)
    return render_csv(doc.Document("", (doc.Table("Studies", doc.text_columns(*RAW), rows),)))


def _raw_cells(one: StudySummary) -> tuple[doc.Value, ...]:
    speedup = (one.speedup.mid, one.speedup.low, one.speedup.high) if one.speedup else (None, None, None)
    created_at = datetime.fromtimestamp(one.created_at, UTC).isoformat()
    plan = show.one_line(one.decided) if one.decided else None
    return (one.id, show.one_line(one.target), one.mode, one.device, one.state, one.trials, plan, *speedup, created_at)


def render_studies(
    summaries: Sequence[StudySummary],
    place: str,
    theme: Theme,
    *,
    target: str | None,
    max_count: int,
    order: Order = Order.NEWEST,
) -> str:
    """Return studies, which are in this order, as a part of a page. At most `max_count` of them are shown.

    See `render_part`.
    """
    shown = tuple(map(_study_row, summaries[:max_count]))
    blocks: list[doc.Block] = [doc.Table(order.capitalize(), STUDIES, shown)]
    if not summaries:
        of_target = f" of {target}" if target else ""
        blocks = [doc.Text(f"No study yet{of_target}: torchwise tune {target or 'TARGET'} creates one.")]
    elif len(summaries) > max_count:
        note = f"These are the first {max_count:,} studies. Filter them to find others. The export has all."
        blocks.insert(0, doc.Text(note, tone=doc.Tone.MUTED))
    return render_part(doc.Document("Studies", tuple(blocks), brand=place), theme)


def _study_row(found: StudySummary) -> doc.Row:
    link, speedup = f"study?study={found.id}", found.speedup
    is_figure = speedup is None or speedup.is_usable
    cells = (
        doc.Cell(str(found.id), link=link),
        doc.Cell(found.target, link=link),
        f"{found.mode} on {found.device}",
        doc.Cell(found.state.value, doc.Tone.GOOD if found.state is StudyState.DECIDED else doc.Tone.WARNING),
        found.trials,
        found.decided or None,
        doc.Cell(show.speedup(speedup), doc.Tone.PLAIN if is_figure else doc.Tone.WARNING),
        when(found.created_at),
    )
    return doc.Row(cells)


def render_approvals(approvals: Sequence[Approval], in_force: str, theme: Theme) -> str:
    """Return approvals, and their effect on a decision in words, as a part of a page. See `render_part`."""
    effect = [doc.Text(in_force, "In force: ")] if in_force else []
    table = doc.Table("Approvals", APPROVALS, tuple(map(_approval_row, approvals)))
    return render_part(doc.Document("", (table, *effect)), theme)


def _approval_row(one: Approval) -> doc.Row:
    standing = doc.Cell(one.standing.value, doc.Tone.BAD if one.standing is Standing.REJECTED else doc.Tone.GOOD)
    return doc.Row((str(one.plan), standing, one.by, one.reason or None, when(one.at)))


DIFF = doc.text_columns("plan", "first", "second", "change")
POINTS = (
    *doc.text_columns("study", "when", "torch", "plan"),
    *doc.figure_columns("per call"),
    doc.speedup_column(),
    *doc.text_columns("change", "note"),
)
LEGEND = "Drift: the time changed together with eager's. Inconclusive: the measurements cannot tell."


def render_study_diff(first: Study, second: Study, theme: Theme) -> str:
    """Return two studies side by side as a part of a page. See `render_part`."""
    plans, targets = compare_studies(first, second), (first.workload.target, second.workload.target)
    why_not = incomparable(first, second)
    tone = doc.Tone.MUTED if why_not else doc.Tone.WARNING
    blocks: tuple[doc.Block, ...] = (
        doc.trust_text(first.trust, "First: "),
        doc.trust_text(second.trust, "Second: "),
        doc.Panel("Summary", summarize_diff(plans, why_not), tone=tone),
        *doc.list_section("Differences", differences(first, second) or ["none"]),
        doc.Table("Plan by plan", DIFF, tuple(map(_diff_row, plans))),
    )
    slower = "Slower: both are worse by more than 5 %, beyond their intervals."
    document = doc.Document(
        f"Studies {first.id} and {second.id}",
        blocks,
        brand=f"From {targets[0]} to {targets[1]}",
        footer=f"Time per call is eager's time divided by the speed-up over eager. {slower} {LEGEND}",
    )
    return render_part(document, theme)


def summarize_diff(plans: list[PlanDiff], why_not: str = "") -> str:
    """Return the result in a line. `why_not` is as in `incomparable`."""
    if why_not:
        return f"The studies are not comparable: {why_not}."
    shared = [line for line in plans if line.first and line.second]
    counts = {change: sum(line.change is change for line in shared) for change in Change}
    words = [f"{count} {change}" for change, count in counts.items() if count]
    return f"{show.pluralize(len(shared), 'plan')} in both: {', '.join(words)}." if shared else "No plan is in both."


def _diff_row(line: PlanDiff) -> doc.Row:
    return doc.Row((line.name, _describe_outcome(line.first), _describe_outcome(line.second), _cell(line)))


def _describe_outcome(row: Candidate | None) -> str:
    if row is None:
        return "not tried"
    if row.trial is None:
        return show.time(row.time)
    if row.standing == "ineligible":
        return row.why
    return f"{show.time(row.time)}, {show.speedup(row.speedup)}{', decided' if row.is_decided else ''}"


def _cell(found: PlanDiff | Point) -> doc.Cell:
    """Return the cell of a change, with its figures."""
    figures = f" ({found.figures})" if found.figures else ""
    return doc.Cell(f"{found.change}{figures}", doc.change_tone(found.change))


def render_history(target: str, studies: Iterable[Study], theme: Theme) -> str:
    """Return the history of a target as a part of a page. See `render_part`."""
    from torchwise.report.plots.study import history_plot

    lines = history(studies)
    plots = [history_plot(line, number) for number, line in enumerate(lines) if len(line.points) > 1]
    result = summarize_history(lines)
    tone = doc.Tone.WARNING if any(line.regressions for line in lines) else doc.Tone.MUTED
    panel = doc.Panel("Summary", result, tone=doc.Tone.GOOD if "no regression" in result else tone)
    slower = "Slower: the time per call and its ratio to eager's both grew by more than 5 %, beyond their intervals."
    document = doc.Document(
        target,
        (panel, *doc.plot_section(plots), *map(_line_section, lines)),
        brand="History, study by study",
        footer=f"Changes are relative to the study before. {slower} {LEGEND}",
    )
    return render_part(document, theme)


def summarize_history(lines: list[Line]) -> str:
    """Return the result in a line."""
    worse = sum(line.regressions for line in lines)
    decisions = show.pluralize(sum(len(line.points) for line in lines), "decision")
    inconclusive = sum(line.inconclusive for line in lines)
    is_compared = any(point.change is not Change.NOT_COMPARED for line in lines for point in line.points)
    parts = [decisions, *([show.pluralize(worse, "regression")] if worse else [])]
    parts += [f"{inconclusive} inconclusive"] if inconclusive else []
    has_none = is_compared and not worse and not inconclusive
    return f"{', '.join([*parts, *(['no regression'] if has_none else [])])}."


def _line_section(line: Line) -> doc.Section:
    table = doc.Table(line.name, POINTS, tuple(map(_point_row, reversed(line.points))))
    trust = doc.trust_text(line.points[-1].study.trust, "Newest study: ")
    return doc.Section(line.name, (doc.Text(line.hardware, tone=doc.Tone.MUTED), trust, table))


def _point_row(point: Point) -> doc.Row:
    study, row = point.study, point.row
    cells = (
        doc.Cell(str(study.id), link=f"study?study={study.id}"),
        when(study.created_at),
        study.environment.torch,
        row.name,
        show.time(row.time),
        show.speedup(row.speedup) if row.trial else "1×",
        _cell(point),
        point.note or None,
    )
    return doc.Row(cells)
