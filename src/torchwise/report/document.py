"""A report as data: texts, facts, tables, plots and commands, which each renderer shows in its own way.

One function for each subject makes its document. So a terminal and a page never show different figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import compress

from torchwise.records import format as show
from torchwise.records.answer import Answer, Change, Reliability, Trust

Fact = tuple[str, str]
"""A name and a value."""
Value = str | float | int | bool | None


class Medium(StrEnum):
    """A kind of output that a block can be for alone."""

    TERMINAL = "terminal"
    PAGE = "page"


class Tone(StrEnum):
    """The emphasis of a text. Colour alone carries no meaning: the words say the same."""

    PLAIN = ""
    STRONG = "strong"
    MUTED = "muted"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph.

    Attributes:
        lead: words before it that stand out, such as "Fix: ".
        tone: its emphasis.
        link: address that its words lead to on a page, or empty.
    """

    text: str
    lead: str = ""
    tone: Tone = Tone.PLAIN
    link: str = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences. A terminal shows at most `limit` of them, and then the number of the others."""

    texts: tuple[str, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values. A terminal shows the sentence `brief` in their place, if there is one."""

    rows: tuple[Fact, ...]
    brief: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy or to read character by character. Screen readers announce it by its label."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and its purpose."""

    command: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands that continue from here, the most useful first."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        is_figure: whether it holds figures, which are aligned at the right and never cut.
        least_width: width of a terminal from which it is shown.
        title: longer heading for a page, or empty.
        medium: the only output that has it, or None for all.
    """

    name: str
    is_figure: bool = False
    is_wrapped: bool = False
    least_width: int = 0
    title: str = ""
    medium: Medium | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than a value.

    Attributes:
        tone: its emphasis.
        link: address that it leads to on a page, or empty.
        detail: text that only a page has room for.
        note: text below the table on a terminal that is too narrow for the column, or empty.
    """

    text: str
    tone: Tone = Tone.PLAIN
    link: str = ""
    detail: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    A value stands for a cell with nothing else. The notes are shown below the table.
    """

    cells: tuple[Cell | Value, ...]
    tone: Tone = Tone.PLAIN
    name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Cell, ...]:
        """The cells, each with its text."""
        return tuple(
            cell if isinstance(cell, Cell) else Cell(show.NONE if cell is None else str(cell)) for cell in self.cells
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        columns: from left to right. The first that holds no figures names the rows.
        note: a warning about the whole table, or empty.
        notes_title: heading of the notes below it, or empty.
        limit: maximum number of rows on a terminal, or None.
        more: description of the rows beyond the limit.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    notes_title: str = ""
    limit: int | None = None
    more: str = ""

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """The texts of the cells, row by row."""
        return tuple(tuple(cell.text for cell in row.shown) for row in self.rows)

    def select(self, medium: Medium) -> Table:
        """Return the table without the columns that are for another output alone."""
        kept = [column.medium in (None, medium) for column in self.columns]
        rows = (replace(row, cells=tuple(compress(row.cells, kept))) for row in self.rows)
        return replace(self, columns=tuple(compress(self.columns, kept)), rows=tuple(rows))


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure of a page.

    Attributes:
        key: short name, unique on the page.
        summary: its message in a sentence, which screen readers use.
        svg: the drawing, safe to insert into a page.
        table: the data drawn, as text.
    """

    key: str
    title: str
    summary: str
    caption: str
    svg: str
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]

    @property
    def data(self) -> Table:
        """The table behind it."""
        return figures_table(f"Data of: {self.title}", self.header, self.table)


@dataclass(frozen=True, slots=True)
class Panel:
    """The result, in a frame: a headline, and the blocks that belong to it.

    Its tone is good if it is certain, and muted if it is inconclusive.
    """

    title: str
    headline: str
    blocks: tuple[Block, ...] = ()
    tone: Tone = Tone.WARNING


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks below a title."""

    title: str
    blocks: tuple[Block, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Entry:
    """One of several things that are described alike.

    Attributes:
        remark: the gist of it, beside the name.
        key: id that cells can link to.
        is_folded: whether a page shows the description only on demand.
    """

    title: str
    remark: Text
    blocks: tuple[Block, ...]
    key: str
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Sections that a wide page shows side by side."""

    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for one medium alone."""

    medium: Medium
    blocks: tuple[Block, ...]


Block = Text | Items | Facts | Code | Commands | Table | Plot | Panel | Section | Entry | Columns | Only


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report.

    Attributes:
        blocks: its contents, the result first.
        brand: kind of report, and its date.
        subtitles: lines below the title of a page.
        footer: line at the end of a page, or empty for a general one.
    """

    title: str
    blocks: tuple[Block, ...]
    brand: str = ""
    subtitles: tuple[str, ...] = ()
    footer: str = ""


def text_columns(*names: str) -> tuple[Column, ...]:
    """Return columns of texts, which may take several lines."""
    return tuple(Column(name, is_wrapped=True) for name in names)


def figure_columns(*names: str) -> tuple[Column, ...]:
    """Return columns of figures."""
    return tuple(Column(name, is_figure=True) for name in names)


def speedup_column() -> Column:
    """Return the column of a speed-up, with its interval."""
    return Column("speed-up", is_figure=True, title="speed-up (95 %)")


def figures_table(caption: str, header: Iterable[str], lines: Iterable[Iterable[Value]]) -> Table:
    """Return a table of figures, whose first column names the rows."""
    columns = tuple(Column(name, is_figure=bool(number)) for number, name in enumerate(header))
    return Table(caption, columns, tuple(Row(tuple(line)) for line in lines))


def list_section(title: str, texts: Iterable[str], limit: int | None = None) -> tuple[Section, ...]:
    """Return a section with a list, or nothing if the list is empty."""
    found = tuple(texts)
    return (Section(title, (Items(found, limit),)),) if found else ()


def plot_section(plots: Iterable[Plot]) -> tuple[Only, ...]:
    """Return a section of a page with plots, or nothing if there are none."""
    found = tuple(plots)
    return (Only(Medium.PAGE, (Section("Plots", found),)),) if found else ()


def trust_text(trust: Trust, prefix: str = "") -> Text:
    """Return the first line of an output: how reliable its figures are."""
    tone = Tone.MUTED if trust.reliability is Reliability.GOOD else Tone.WARNING
    return Text(f"{prefix}{show.one_line(trust.sentence)}", tone=tone)


def answer_tone(answer: Answer) -> Tone:
    """Return the tone of a panel whose result is an answer."""
    return {Answer.YES: Tone.GOOD, Answer.NO: Tone.WARNING, Answer.INCONCLUSIVE: Tone.MUTED}[answer]


def change_tone(change: Change) -> Tone:
    """Return the tone of a change."""
    if change.is_regression:
        return Tone.BAD
    return {Change.INCONCLUSIVE: Tone.WARNING, Change.FASTER: Tone.GOOD}.get(change, Tone.PLAIN)
