"""What the reports on a terminal are laid out with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records.answer import Reliability, Trust
from torchwise.report import format as show

Row = TypeVar("Row")
Column = tuple[str, bool, Callable[[Row], str]]
"""Its name, whether it holds figures, and the text of a row in it."""
TRUST_STYLES = {Reliability.GOOD: "dim", Reliability.LIMITED: "yellow", Reliability.UNUSABLE: "bold yellow"}


def trusted(trust: Trust) -> RenderableType:
    """Return the sentence that stands at the top of an output: how far its figures can be trusted."""
    return Text(show.one_line(trust.sentence), style=TRUST_STYLES[trust.reliability])


def hanging(text: str, lead: str = "", style: str = "", indent: int = 2, lead_style: str = "bold") -> RenderableType:
    """Return a paragraph, of which every line is indented."""
    return Padding(Text.assemble((lead, lead_style), (text, style)), (0, 0, 0, indent))


def listed(title: str, lines: Iterable[RenderableType]) -> RenderableType:
    """Return lines below a title."""
    return Group(Text(f"\n{title}", style="bold"), *lines)


def table() -> Table:
    """Return a table without columns, as wide as what is in it, and with a line below the heads alone."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)


def filled(
    columns: Sequence[Column[Row]], rows: Iterable[Row], style: Callable[[Row, str], str], *, wrapped: Sequence[str]
) -> Table:
    """Return such a table with its rows.

    Args:
        columns: from left to right.
        rows: what each line is made from.
        style: of the cell of a row in the column of a name.
        wrapped: names of the columns that may take several lines.
    """
    made = table()
    for name, is_figure, _ in columns:
        justify = "right" if is_figure else "left"
        made.add_column(name, justify=justify, no_wrap=name not in wrapped, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(cell(row), style=style(row, name)) for name, _, cell in columns))
    return made
