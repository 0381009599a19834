"""What the reports on a terminal are laid out with."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def hanging(text: str, lead: str = "", style: str = "", indent: int = 2) -> RenderableType:
    """Return a paragraph, of which every line is indented."""
    return Padding(Text.assemble((lead, "bold"), (text, style)), (0, 0, 0, indent))


def table() -> Table:
    """Return a table without columns, as wide as what is in it, and with a line below the heads alone."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)
