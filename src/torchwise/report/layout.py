"""Layout elements of the reports on a terminal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records.answer import Reliability, Trust
from torchwise.report import format as show

Row = TypeVar("Row")
Column = tuple[str, bool, Callable[[Row], str]]
"""Its name, whether it holds figures, and the text of a row in it."""
MIN_WRAPPED = 16
"""Minimum letters per line of a wrapped column, so that most words stay whole."""
TRUST_STYLES = {Reliability.GOOD: "dim", Reliability.LIMITED: "yellow", Reliability.UNUSABLE: "bold yellow"}


def trust_line(trust: Trust) -> RenderableType:
    """Return the first line of an output: how reliable its figures are."""
    return Text(show.one_line(trust.sentence), style=TRUST_STYLES[trust.reliability])


def paragraph(text: str, lead: str = "", style: str = "", indent: int = 2, lead_style: str = "bold") -> RenderableType:
    """Return a paragraph with every line indented."""
    return Padding(Text.assemble((lead, lead_style), (text, style)), (0, 0, 0, indent))


def section(title: str, lines: Iterable[RenderableType]) -> RenderableType:
    """Return lines below a title."""
    return Group(Text(f"\n{title}", style="bold"), *lines)


def table() -> Table:
    """Return a table without columns, as wide as its contents, with a line only below the header."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)


def fill_table(
    choices: Sequence[Sequence[Column[Row]]],
    rows: Sequence[Row],
    style: Callable[[Row, str], str],
    *,
    wrapped: Sequence[str],
    width: int,
) -> Table:
    """Return a table with the first set of columns that fits. No figure is cut, and no name becomes too narrow.

    Args:
        choices: sets of columns from left to right. The first one that fits is taken, if necessary with two lines for
            each interval.
        rows: the items behind the lines.
        style: style of the cell of a row in the column of a name.
        wrapped: names of the columns that may take several lines.
        width: of the terminal.
    """
    for columns, is_folded in itertools.product(choices, (False, True)):
        cells = [
            [_wrap_cell(cell(row)) if is_folded and name not in wrapped else cell(row) for name, _, cell in columns]
            for row in rows
        ]
        if _min_width([name for name, _, _ in columns], cells, wrapped) <= width:
            break
    filled = table()
    for name, is_figure, _ in columns:
        justify = "right" if is_figure else "left"
        filled.add_column(name, justify=justify, no_wrap=name not in wrapped, overflow="fold")  # type: ignore[arg-type]
    for row, texts in zip(rows, cells, strict=True):
        filled.add_row(*(Text(text, style=style(row, name)) for text, (name, _, _) in zip(texts, columns, strict=True)))
    return filled


def _min_width(names: Sequence[str], rows: Sequence[Sequence[str]], wrapped: Sequence[str]) -> int:
    """Return the terminal width that a table needs if only these columns are wrapped, and not too narrowly."""
    total = 3 * len(names) - 1  # the space between the columns, and at both ends
    for name, *cells in zip(names, *rows, strict=True):
        longest = max(cell_len(line) for cell in (name, *cells) for line in cell.splitlines() or [""])
        total += min(longest, MIN_WRAPPED) if name in wrapped else longest
    return total


def _wrap_cell(text: str) -> str:
    """Return "1.91× to 5.73×", "1.52× [1.49, 1.56]", "1.25 GiB (1.02×)" or "not comparable" on two lines."""
    return re.sub(r"(?<= to) |(?<=^not) | (?=[\[(])", "\n", text)
