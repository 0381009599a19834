"""A document on a terminal of any width. Terminal escapes are removed from every text of a model or a compiler."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel as Frame
from rich.table import Table as Grid
from rich.text import Text as Words

from torchwise.records import format as show
from torchwise.report import document as doc
from torchwise.report.facts import wrap_command

STYLES = {
    doc.Tone.PLAIN: "",
    doc.Tone.STRONG: "bold",
    doc.Tone.MUTED: "dim",
    doc.Tone.GOOD: "green",
    doc.Tone.WARNING: "yellow",
    doc.Tone.BAD: "red",
}
ROW_STYLES = {**STYLES, doc.Tone.GOOD: "bold green"}
MIN_WRAPPED = 16
"""Minimum letters per line of a wrapped column, so that most words stay whole."""
MAX_EXCERPT = 200


def render_terminal(document: doc.Document) -> RenderableType:
    """Return a document for a rich console."""
    return Group(*_render_blocks(document.blocks, 0))


def _paragraph(
    words: str, lead: str = "", style: str = "", indent: int = 2, lead_style: str = "bold"
) -> RenderableType:
    """Return a paragraph with every line indented."""
    line = Words.assemble((show.plain(lead), lead_style), (show.plain(words), style))
    return _Paragraph(line, indent) if indent else line


class _Paragraph:
    """An indented paragraph, which stays one line where the console does not wrap, as in a log."""

    def __init__(self, line: Words, indent: int) -> None:
        self._line, self._indent = line, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap:
            yield from (Words.assemble(" " * self._indent, part) for part in self._line.split("\n"))
        else:
            yield Padding(self._line, (0, 0, 0, self._indent))


def _render_blocks(blocks: Iterable[doc.Block], indent: int) -> Iterator[RenderableType]:
    before: doc.Block | None = None
    for block in blocks:
        if not indent and isinstance(block, doc.Text) and isinstance(before, doc.Section):
            yield Words()
        yield from _render_block(block, indent)
        before = block


def _render_block(block: doc.Block, indent: int) -> Iterator[RenderableType]:
    """Yield the lines of one block. Lines of text are indented. Tables and titles are not."""
    match block:
        case doc.Text():
            yield _paragraph(block.text, block.lead, "cyan" if block.link else STYLES[block.tone], indent)
        case doc.Items():
            yield from _render_items(block, indent)
        case doc.Facts():
            yield _paragraph(block.brief, indent=indent) if block.brief else _render_facts(block, indent)
        case doc.Code():
            yield _paragraph(block.text, style="dim", indent=indent + 1)
        case doc.Commands():
            yield from _render_commands(block, indent)
        case doc.Table():
            yield _TableView(block.select(doc.Medium.TERMINAL))
        case doc.Plot():
            yield _paragraph(block.summary, f"{block.title}: ", indent=indent)
        case doc.Panel():
            yield _render_panel(block)
        case doc.Section():
            yield Words(f"\n{show.one_line(block.title)}", style=f"bold {STYLES[block.tone]}".strip())
            yield from _render_blocks(block.blocks, 2)
        case doc.Entry():
            yield _render_entry(block)
        case doc.Columns():
            yield from _render_blocks(block.sections, indent)
        case doc.Only(medium=doc.Medium.TERMINAL):
            yield from _render_blocks(block.blocks, indent)
        case doc.Only():
            return


def _render_items(block: doc.Items, indent: int) -> Iterator[RenderableType]:
    if block.limit is None:
        yield from (_paragraph(line, indent=indent) for line in block.texts)
        return
    yield from (_paragraph(show.truncate(line, MAX_EXCERPT), indent=indent) for line in block.texts[: block.limit])
    if (left := len(block.texts) - block.limit) > 0:
        yield _paragraph(f"and {left} more, which the page and the JSON list", indent=indent)


def _render_facts(block: doc.Facts, indent: int) -> RenderableType:
    grid = Grid.grid(padding=(0, 2))
    for name, value in block.rows:
        grid.add_row(Words(show.one_line(name), style="dim"), Words(show.one_line(value)))
    return Padding(grid, (0, 0, 0, indent))


def _render_commands(block: doc.Commands, indent: int) -> Iterator[RenderableType]:
    for step in block.steps:
        yield _CommandView(step.command)
        if step.purpose:
            yield _paragraph(step.purpose, style="dim", indent=indent + 2)


def _render_panel(block: doc.Panel) -> RenderableType:
    lines = [Words(show.plain(block.headline), style="bold"), *_render_blocks(block.blocks, 0)]
    style = "green" if block.tone is doc.Tone.GOOD else "yellow"
    return Frame(Group(*lines), title=Words(show.one_line(block.title)), title_align="left", border_style=style)


def _render_entry(block: doc.Entry) -> RenderableType:
    title, remark = show.plain(block.title), show.plain(block.remark.text)
    head = Words.assemble((title, "bold"), "  ", (remark, STYLES[block.remark.tone]))
    return Padding(Group(head, *_render_blocks(block.blocks, 3)), (0, 0, 1, 0))


class _CommandView:
    """A command, broken only where a shell allows it, so that it can be copied from a narrow terminal too."""

    def __init__(self, command: str) -> None:
        self._command = show.plain(command)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in wrap_command(self._command, options.max_width - 2):
            yield Words(f"  {line}", style="cyan", overflow="fold")


class _TableView:
    """A table with the most columns that fit. No figure is cut, and no name becomes too narrow.

    Notes, and texts of columns that do not fit, follow below it. If nothing fits, each row becomes a sentence.
    """

    def __init__(self, table: doc.Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table
        places, cells = _fit(table, options.max_width)
        yield _make_grid(table, places, cells) if cells is not None else Group(*_render_as_sentences(table))
        if table.note:
            yield _paragraph(table.note, style="yellow")
        if table.limit is not None and len(table.rows) > table.limit:
            yield _paragraph(table.more)
        notes = list(_find_notes(table, places if cells is not None else range(len(table.columns))))
        if table.notes_title and notes:
            yield Words(f"\n{show.one_line(table.notes_title)}", style="bold")
        yield from (_paragraph(note, f"{name}: ", lead_style=style or "bold") for name, note, style in notes)


def _fit(table: doc.Table, width: int) -> tuple[list[int], list[list[str]] | None]:
    """Return the places of the columns that fit, and their cells, or None if not even the narrowest set fits.

    Intervals take two lines if that makes room for a column. Long words are broken only if that does not suffice.
    """
    levels = sorted({column.least_width for column in table.columns if column.least_width <= width}, reverse=True)
    places: list[int] = []
    for level, breaks_words, is_folded in itertools.product(levels, (False, True), (False, True)):
        places = [place for place, column in enumerate(table.columns) if column.least_width <= level]
        wraps = [table.columns[place].is_wrapped for place in places]
        fold = [_fold if is_folded and not wraps_text else show.one_line for wraps_text in wraps]
        cells = [
            [shown(line[place]) for place, shown in zip(places, fold, strict=True)]
            for line in table.lines[: table.limit]
        ]
        if _min_width([table.header[place] for place in places], cells, wraps, breaks_words) <= width:
            return places, cells
    return places, None


def _min_width(names: Sequence[str], rows: Sequence[Sequence[str]], wraps: Sequence[bool], breaks_words: bool) -> int:
    """Return the terminal width that a table needs if only these columns are wrapped, and not too narrowly."""
    total = 3 * len(names) - 1  # the space between the columns, and at both ends
    for name, is_wrapped, *cells in zip(names, wraps, *rows, strict=True):
        longest = max(cell_len(line) for cell in (name, *cells) for line in cell.splitlines() or [""])
        word = 0 if breaks_words else max(cell_len(word) for cell in (name, *cells) for word in cell.split() or [""])
        total += max(word, min(longest, MIN_WRAPPED)) if is_wrapped else longest
    return total


def _fold(cell: str) -> str:
    """Return "1.91× to 5.73×", "1.52× [1.49, 1.56]", "1.25 GiB (1.02×)" or "not comparable" on two lines."""
    return re.sub(r"(?<= to) |(?<=^not) | (?=[\[(])", "\n", show.one_line(cell))


def _make_grid(table: doc.Table, places: Sequence[int], cells: Sequence[Sequence[str]]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)  # a line only below the header
    for place in places:
        column, title = table.columns[place], Words(show.one_line(table.header[place]))
        side: Literal["left", "right"] = "right" if column.is_figure else "left"
        grid.add_column(title, justify=side, no_wrap=not column.is_wrapped, overflow="fold")
    for row, texts in zip(table.rows, cells, strict=False):
        tones = [row.shown[place].tone for place in places]
        styles = [STYLES[tone] if tone else ROW_STYLES[row.tone] for tone in tones]
        grid.add_row(*(Words(words, style=style) for words, style in zip(texts, styles, strict=True)))
    return grid


def _render_as_sentences(table: doc.Table) -> Iterator[RenderableType]:
    for name, *cells in table.lines[: table.limit]:
        pairs = ", ".join(f"{title} {cell}" for title, cell in zip(table.header[1:], cells, strict=True))
        yield _paragraph(f"{table.header[0]} {name}: {pairs}".strip())


def _find_notes(table: doc.Table, places: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Yield the name of a row, a note on it, and the row's style."""
    for row in table.rows[: table.limit]:
        hidden = (cell.note for place, cell in enumerate(row.shown) if place not in places)
        for note in (*filter(None, hidden), *row.notes):
            yield row.name, show.one_line(note), ROW_STYLES[row.tone]
