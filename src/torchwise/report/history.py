"""Studies side by side, as parts of a page: two studies, or the history of one target."""

from __future__ import annotations

from collections.abc import Iterable

from torchwise.records import Study
from torchwise.records import format as show
from torchwise.records.answer import Change
from torchwise.records.candidates import Row as Candidate
from torchwise.records.study_diff import Line, PlanDiff, Point, compare_studies, differences, history, incomparable
from torchwise.report.document import (
    Block,
    Cell,
    Document,
    Panel,
    Row,
    Section,
    Table,
    Text,
    Tone,
    change_tone,
    list_section,
    plot_section,
    text_columns,
    trust_text,
)
from torchwise.report.facts import when
from torchwise.report.render.html import Theme, render_part

DIFF = text_columns("plan", "first", "second", "change")
POINTS = text_columns("study", "when", "torch", "plan", "per call", "speed-up (95 %)", "change", "note")
LEGEND = "Drift: the time changed together with eager's. Inconclusive: the measurements cannot tell."


def render_study_diff(first: Study, second: Study, theme: Theme) -> str:
    """Return two studies side by side as a part of a page. See `render_part`."""
    plans, targets = compare_studies(first, second), (first.workload.target, second.workload.target)
    blocks: tuple[Block, ...] = (
        trust_text(first.trust, "First: "),
        trust_text(second.trust, "Second: "),
        Panel("Summary", summarize_diff(plans, incomparable(first, second))),
        *list_section("Differences", differences(first, second) or ["none"]),
        Table("Plan by plan", DIFF, tuple(map(_diff_row, plans))),
    )
    slower = "Slower: both are worse by more than 5 %, beyond their intervals."
    document = Document(
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


def _diff_row(line: PlanDiff) -> Row:
    return Row((line.name, _describe_outcome(line.first), _describe_outcome(line.second), _cell(line)))


def _describe_outcome(row: Candidate | None) -> str:
    if row is None:
        return "not tried"
    if row.trial is None:
        return show.time(row.time)
    if row.standing == "ineligible":
        return row.why
    return f"{show.time(row.time)}, {show.speedup(row.speedup)}{', decided' if row.is_decided else ''}"


def _cell(found: PlanDiff | Point) -> Cell:
    """Return the cell of a change, with its figures."""
    figures = f" ({found.figures})" if found.figures else ""
    return Cell(f"{found.change}{figures}", change_tone(found.change))


def render_history(target: str, studies: Iterable[Study], theme: Theme) -> str:
    """Return the history of a target as a part of a page. See `render_part`."""
    from torchwise.report.plots.study import history_plot

    lines = history(studies)
    plots = [history_plot(line, number) for number, line in enumerate(lines) if len(line.points) > 1]
    result = summarize_history(lines)
    panel = Panel("Summary", result, tone=Tone.GOOD if "no regression" in result else Tone.WARNING)
    slower = "Slower: the time per call and its ratio to eager's both grew by more than 5 %, beyond their intervals."
    document = Document(
        target,
        (panel, *plot_section(plots), *map(_line_section, lines)),
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


def _line_section(line: Line) -> Section:
    table = Table(line.name, POINTS, tuple(map(_point_row, reversed(line.points))))
    trust = trust_text(line.points[-1].study.trust, "Newest study: ")
    return Section(line.name, (Text(line.hardware, tone=Tone.MUTED), trust, table))


def _point_row(point: Point) -> Row:
    study, row = point.study, point.row
    cells = (
        Cell(str(study.id), link=f"study?study={study.id}"),
        when(study.created_at),
        study.environment.torch,
        row.name,
        show.time(row.time),
        show.speedup(row.speedup) if row.trial else "1×",
        _cell(point),
        point.note or None,
    )
    return Row(cells)
