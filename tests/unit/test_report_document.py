"""One small document through all renderers: each shows every kind of block, and nothing that is for another one."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html import unescape
from typing import get_args

import pytest
from rich.console import Console

from torchwise.records import format as show
from torchwise.report.bench_files import render_csv
from torchwise.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Columns,
    Commands,
    Document,
    Entry,
    Facts,
    Items,
    Medium,
    Only,
    Panel,
    Plot,
    Row,
    Section,
    Step,
    Table,
    Text,
    Tone,
    figures_table,
)
from torchwise.report.html import render_page, render_part
from torchwise.report.markdown import render_markdown
from torchwise.report.terminal import render_terminal

TABLE = Table(
    "a caption",
    (
        Column("plan", is_wrapped=True),
        Column("speed", is_figure=True, title="speed (95 %)"),
        Column("why", is_wrapped=True, least_width=100),
    ),
    (
        Row(
            (Cell("inductor", link="#entry"), 1.25, Cell("a reason", note="a reason")),
            Tone.GOOD,
            "inductor",
            ("a note",),
        ),
        Row(("eager", None, "a baseline"), name="eager"),
    ),
    note="a warning",
    notes_title="Why",
)
SAMPLES: dict[type, tuple[Block, tuple[str, ...]]] = {
    Text: (Text("some words", "Lead: ", Tone.WARNING), ("Lead:", "some words")),
    Items: (Items(("one item", "another item")), ("one item", "another item")),
    Facts: (Facts((("a name", "a value"),)), ("a name", "a value")),
    Code: (Code("x = 1", "a label"), ("x = 1",)),
    Commands: (Commands((Step("torchwise doctor", "a purpose"),)), ("torchwise doctor", "a purpose")),
    Table: (TABLE, ("plan", "inductor", "1.25", "eager", "–", "a note", "a warning")),
    Plot: (
        Plot("key", "a plot", "a summary", "its elements", "<svg></svg>", ("x", "y"), (("1", "2"),)),
        ("a plot", "a summary"),
    ),
    Panel: (Panel("a frame", "a headline", (Text("within it"),)), ("a frame", "a headline", "within it")),
    Section: (Section("a title", (Text("below it"),)), ("a title", "below it")),
    Entry: (Entry("an entry", Text("its gist"), (Text("its parts"),), "entry"), ("an entry", "its gist", "its parts")),
    Columns: (Columns((Section("left", (Text("one"),)), Section("right", (Text("two"),)))), ("left", "one", "right")),
    Only: (Only(Medium.PAGE, (Text("for a page"),)), ()),
}
WHOLE = Document("a document", tuple(block for block, _ in SAMPLES.values()), "a brand", ("a subtitle",), "a last line")


def show_on_terminal(document: Document, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render_terminal(document))
    return file.getvalue()


def read_page(page: str) -> str:
    """Return the text of a page."""
    return unescape(re.sub(r"<[^>]+>", "", page.partition("<body>")[2]))


def alone(block: Block) -> Document:
    return Document("", (block,))


def test_the_samples_hold_every_kind_of_block() -> None:
    assert set(SAMPLES) == set(get_args(Block))


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_every_renderer_shows_every_kind_of_block(kind: type) -> None:
    block, words = SAMPLES[kind]
    outputs = {
        "terminal": show_on_terminal(alone(block)),
        "page": read_page(render_page(alone(block))),
        "Markdown": render_markdown(alone(block)).replace("\\", ""),
    }
    missing = [(name, word) for name, text in outputs.items() for word in words if word not in text]
    assert not missing


def test_a_block_for_one_medium_is_in_no_other() -> None:
    pages, terminals = (alone(Only(medium, (Text("just here"),))) for medium in (Medium.PAGE, Medium.TERMINAL))
    assert "just here" in read_page(render_page(pages))
    assert "just here" not in read_page(render_page(terminals))
    assert ("just here" in show_on_terminal(pages), "just here" in show_on_terminal(terminals)) == (False, True)
    assert "just here" not in render_markdown(pages) + render_markdown(terminals)


def test_a_kind_of_block_without_a_macro_fails() -> None:
    with pytest.raises(Exception, match="missing"):
        render_page(alone("no block"))  # type: ignore[arg-type]


@pytest.mark.parametrize("wraps", [True, False])
def test_a_page_shows_all_of_a_table_whether_it_scrolls_or_becomes_cards(wraps: bool) -> None:
    columns = (Column("plan", is_wrapped=wraps), Column("speed", is_figure=True, medium=Medium.TERMINAL), Column("why"))
    row = Row((Cell("inductor", link="#x"), 1.25, Cell("wrong", Tone.BAD, detail="by far")), notes=("a note",))
    page = render_page(alone(Table("caption", columns, (row,), note="a warning")))
    assert ('class="scroll"' in page) is not wraps
    for part in ('<a href="#x">inductor</a>', '<span class="bad">wrong</span>', "by far", "a note", "a warning"):
        assert part in page
    assert "1.25" not in read_page(page)


def test_a_page_has_its_frame_and_a_part_has_none() -> None:
    page, part = render_page(WHOLE), render_part(WHOLE, "dark")
    for words in ("a document", "a brand", "a subtitle", "a last line"):
        assert words in page
        assert words in part
    assert page.startswith("<!doctype html>")
    assert "<html" not in part
    assert len(set(found := re.findall(r'\bid="([^"]+)"', page))) == len(found)
    assert set(re.findall(r'aria-labelledby="([^"]+)"', page)) <= set(found)


@pytest.mark.parametrize("width", [100, 60])
def test_what_a_narrow_terminal_has_no_column_for_follows_below(width: int) -> None:
    text = show_on_terminal(alone(TABLE), width)
    header = next(line for line in text.splitlines() if "plan" in line)
    assert ("why" in header) == (width == 100)
    assert ("inductor: a reason" in text) == (width == 60)
    assert "inductor: a note" in text


@pytest.mark.parametrize(("width", "is_table"), [(40, True), (14, False)])
def test_a_table_that_fits_no_terminal_becomes_sentences(width: int, is_table: bool) -> None:
    text = " ".join(show_on_terminal(alone(figures_table("", ("calls", "eager"), ((100, "12.4 ms"),))), width).split())
    assert ("calls 100: eager 12.4 ms" in text) is not is_table


def test_a_terminal_cuts_long_lists_and_tables_and_says_so() -> None:
    rows = tuple(Row((f"row {number}",)) for number in range(5))
    table = Table("", (Column("name", is_wrapped=True),), rows, limit=2, more="and 3 more")
    text = show_on_terminal(Document("", (table, Items(tuple(f"item {number}" for number in range(5)), limit=3))))
    assert [word in text for word in ("row 1", "row 2", "and 3 more")] == [True, False, True]
    assert [word in text for word in ("item 2", "item 3", "and 2 more")] == [True, False, True]
    assert "row 4" in render_page(alone(table))


def test_csv_has_the_exact_values_of_tables() -> None:
    table = Table("", (Column("a"), Column("b")), (Row((1 / 3, None)), Row((True, Cell("x,y")))))
    assert list(csv.reader(io.StringIO(render_csv(alone(table))))) == [["a", "b"], [repr(1 / 3), ""], ["True", "x,y"]]


def test_text_of_a_model_is_text_for_every_renderer() -> None:
    hostile = "\x1b[2J<script>x</script>|[red]"
    document = Document(hostile, tuple(make(hostile) for make in (Text, lambda text: Items((text,)), hostile_table)))
    for text in (show_on_terminal(document), render_page(document), render_markdown(document)):
        assert "\x1b" not in text
    assert "<script>" not in render_page(document)
    assert "[red]" in show_on_terminal(document)
    assert "<script>" not in render_markdown(document).replace("\\<script\\>", "")


def hostile_table(text: str) -> Table:
    return replace(TABLE, caption=text, rows=(Row((text, show.NONE, text), name=text, notes=(text,)),))
