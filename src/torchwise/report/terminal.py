"""A study and a decision on a terminal: the decision first, then the evidence, then the next commands.

Colour alone carries no meaning. Terminal escapes are removed from every text of a model or a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.text import Text

from torchwise.records import Decision, Outcome, Study, StudyState
from torchwise.report import format as show
from torchwise.report import layout, summary
from torchwise.report.commands import Step, next_steps, wrap_command
from torchwise.report.layout import Column, paragraph, section
from torchwise.report.throughput import throughputs
from torchwise.report.trial_table import Row, rows

WIDE, MEDIUM = 130, 80
"""Widths from which the table has the reasons, and from which it has everything except the memory."""
MAX_EXCLUDED = 6
STYLES = {"decided": "bold green", "baseline": "bold", "verified": "", "ineligible": "dim"}

_PLAN: Column[Row] = ("plan", False, lambda row: row.name)
_SPEEDUP: Column[Row] = ("speed-up", True, lambda row: show.speedup(row.speedup) if row.trial else "1×")
_NARROW: tuple[Column[Row], ...] = (
    _PLAN,
    ("speed-up", True, lambda row: show.brief_speedup(row.speedup) if row.trial else "1×"),
    ("answer", False, lambda row: row.verdict or show.NONE),
)
_MEDIUM: tuple[Column[Row], ...] = (
    ("#", True, lambda row: "" if row.number is None else str(row.number)),
    _PLAN,
    _SPEEDUP,
    ("per call", True, lambda row: show.time(row.time)),
    ("compile", True, lambda row: show.seconds(row.cold_s)),
    ("answer", False, lambda row: row.verdict or show.NONE),
)
_WIDE: tuple[Column[Row], ...] = (
    *_MEDIUM[:5],
    ("warm", True, lambda row: show.seconds(row.warm_s)),
    ("peak memory", True, lambda row: row.memory),
    _MEDIUM[5],
    ("why", False, lambda row: row.why),
)
_COLUMNS = ((WIDE, _WIDE), (MEDIUM, _MEDIUM), (0, _NARROW))


def render_study(study: Study, name: str | None = None, store: str | None = None) -> RenderableType:
    """Return a study: decision, candidates with reasons, untried choices, notes, and the next commands.

    Args:
        study: the results.
        name: name of the study in the next commands. See `next_steps`.
        store: location of the study's store in those commands.
    """
    parts: list[RenderableType] = [
        *([layout.trust_line(study.trust)] if study.is_timed else []),
        render_decision(study.decision, summary.caches(study)) if study.decision else _render_no_decision(study),
        Text(summary.describe_request(study), style="dim"),
        *(Text(line) for line in throughputs(study)),
        _Candidates(rows(study)),
    ]
    if study.excluded:
        parts.append(_render_excluded(study.excluded))
    if found := summary.notes(study):
        parts.append(section("Notes", [paragraph(text) for text in found]))
    parts.append(section("Next", commands(next_steps(study, name, store))))
    return Group(*parts)


def render_decision(decision: Decision, more: Iterable[str] = ()) -> RenderableType:
    """Return a decision: its reason, its figures and `more` of them, and its target and machine."""
    lines = [Text(show.plain(decision.reason), style="bold")]
    if not decision.plan.is_eager:
        lines.append(Text(summary.describe_costs(decision)))
    lines += map(Text, more)
    scope = f"holds for {show.one_line(decision.workload.target)} on {summary.place(decision.environment)}"
    lines.append(Text(scope, style="dim"))
    is_reliable = decision.speedup is not None and decision.speedup.is_usable
    title = "Inconclusive" if decision.is_inconclusive else "Decision"
    return Panel(Group(*lines), title=title, title_align="left", border_style="green" if is_reliable else "yellow")


def _render_no_decision(study: Study) -> RenderableType:
    state = "still searching" if study.state is StudyState.RUNNING else "interrupted before a decision"
    finished = sum(trial.state.is_finished for trial in study.trials)
    text = Text(f"No decision yet: {state}, {show.pluralize(finished, 'trial')} finished.", style="bold")
    return Panel(text, title="Decision", title_align="left", border_style="yellow")


class _Candidates:
    """The table, with as many columns as fit the terminal. Reasons that do not fit follow below it."""

    def __init__(self, found: list[Row]) -> None:
        self._rows = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        choices = [columns for least, columns in _COLUMNS if width >= least]
        table = layout.fill_table(choices, self._rows, _style, wrapped=("plan", "why"), width=width)
        yield table
        if all(column.header != "why" for column in table.columns):
            styled = [(row, STYLES[row.standing] or "bold") for row in self._rows if row.why]
            yield section("Why", [paragraph(row.why, f"{row.name}: ", lead_style=style) for row, style in styled])


def _style(row: Row, column: str) -> str:
    if column == "answer" and row.outcome in (Outcome.FAIL, Outcome.NOT_COMPARABLE):
        return "red" if row.outcome is Outcome.FAIL else "yellow"
    return "bold green" if row.is_decided else STYLES[row.standing]


def _render_excluded(excluded: tuple[str, ...]) -> RenderableType:
    lines: list[RenderableType] = [paragraph(show.truncate(text, 200)) for text in excluded[:MAX_EXCLUDED]]
    if left := len(excluded) - MAX_EXCLUDED:
        lines += [paragraph(f"and {left} more, which the page and the JSON list")] if left > 0 else []
    return section("Not tried", lines)


class Command:
    """A command, broken only where a shell allows it, so that it can be copied from a narrow terminal too."""

    def __init__(self, command: str) -> None:
        self._command = show.plain(command)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in wrap_command(self._command, options.max_width - 2):
            yield Text(f"  {line}", style="cyan", overflow="fold")


def commands(steps: Iterable[Step], indent: int = 4) -> Iterator[RenderableType]:
    """Yield commands, each with its purpose below it."""
    for step in steps:
        yield Command(step.command)
        yield paragraph(step.purpose, style="dim", indent=indent)
