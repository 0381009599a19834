"""An analysis on a terminal: first the advice, then its evidence phase by phase, then the next commands."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from torchwise.records.analysis import Analysis
from torchwise.records.answer import Answer
from torchwise.report import format as show
from torchwise.report import layout
from torchwise.report.analysis.phases import Phase, Table, describe_request, phases
from torchwise.report.analysis.steps import next_steps, notes
from torchwise.report.layout import paragraph, section
from torchwise.report.summary import place
from torchwise.report.terminal import commands


def render_analysis(analysis: Analysis, store: str | None = None) -> RenderableType:
    """Return an analysis: the advice, the phases, notes, and the next commands. `store` is as in `next_steps`."""
    head, *rest = [show.plain(advice.text) for advice in analysis.advice] or ["No advice."]
    scope = f"holds for {show.one_line(analysis.workload.target)} on {place(analysis.environment)}"
    lines = [Text(head, style="bold"), Text(scope, style="dim")]
    pays = analysis.answer is Answer.YES
    title = "Inconclusive" if analysis.answer is Answer.INCONCLUSIVE else "Analysis"
    parts: list[RenderableType] = [
        layout.trust_line(analysis.judge_trust()),
        Panel(Group(*lines), title=title, title_align="left", border_style="green" if pays else "yellow"),
        Text(describe_request(analysis), style="dim"),
        *(_PhaseView(phase) for phase in phases(analysis)),
        *([section("Advice", map(paragraph, rest))] if rest else []),
        *([section("Notes", map(paragraph, texts))] if (texts := notes(analysis)) else []),
        section("Next", commands(next_steps(analysis, store))),
    ]
    return Group(*parts)


class _PhaseView:
    """A phase. A table that is wider than the terminal becomes lines."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        phase = self._phase
        yield Text(f"\n{phase.title}", style="bold")
        if phase.facts:
            yield Padding(_facts(phase), (0, 0, 0, 2))
        if phase.table:
            grid = _grid(phase.table)
            fits = console.measure(grid, options=options.update(max_width=1000)).maximum <= options.max_width - 2
            yield Padding(grid, (0, 0, 0, 2)) if fits else Group(*_as_lines(phase.table))
        if phase.note:
            yield paragraph(phase.note, style="dim")


def _facts(phase: Phase) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    for name, value in phase.facts:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def _grid(table: Table) -> Grid:
    grid = layout.table()
    for number, name in enumerate(table.header):
        grid.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in table.lines:
        grid.add_row(*map(Text, line))
    return grid


def _as_lines(table: Table) -> Iterator[RenderableType]:
    for name, *cells in table.lines:
        pairs = ", ".join(f"{title} {cell}" for title, cell in zip(table.header[1:], cells, strict=True))
        yield paragraph(f"{table.header[0]} {name}: {pairs}".strip())
