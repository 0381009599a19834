"""A document as Markdown, for a pull request or a page of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchwise.records import format as show
from torchwise.report import document as doc

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~"})


def render_markdown(document: doc.Document) -> str:
    """Return a document as Markdown. Blocks for a terminal or a page alone are left out."""
    title = f"# {_escape(document.title)}" if document.title else ""
    return "\n\n".join(filter(None, [title, *_render_blocks(document.blocks, 2)])) + "\n"


def _render_blocks(blocks: Iterable[doc.Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _render_block(block, level)


def _render_block(block: doc.Block, level: int) -> Iterator[str]:
    """Yield the paragraphs of a block. Its title, if it has one, is a heading of this level."""
    match block:
        case doc.Text():
            yield _escape(f"{block.lead}{block.text}")
        case doc.Items():
            yield _list(block.texts)
        case doc.Facts():
            yield _list(f"{name}: {value}" for name, value in block.rows)
        case doc.Code():
            yield _fence(block.text)
        case doc.Commands():
            for step in block.steps:
                yield from filter(None, (_escape(step.purpose), _fence(step.command)))
        case doc.Table():
            yield from _render_table(block)
        case doc.Plot():
            yield _escape(f"{block.title}: {block.summary}")
            yield from _render_table(block.data)
        case doc.Panel():
            yield from (f"{'#' * level} {_escape(block.title)}", f"**{_escape(block.headline)}**")
            yield from _render_blocks(block.blocks, level + 1)
        case doc.Section():
            yield f"{'#' * level} {_escape(block.title)}"
            yield from _render_blocks(block.blocks, level + 1)
        case doc.Entry():
            yield from (f"{'#' * level} {_escape(block.title)}", _escape(block.remark.text))
            yield from _render_blocks(block.blocks, level + 1)
        case doc.Columns():
            yield from _render_blocks(block.sections, level)
        case doc.Only():
            return


def _render_table(table: doc.Table) -> Iterator[str]:
    """Yield a table, the note on the whole of it, and the notes on its rows."""
    rule = ["---:" if column.is_figure else "---" for column in table.columns]
    lines = ([_escape(cell) for cell in line] for line in table.lines)
    yield "\n".join(f"| {' | '.join(line)} |" for line in (table.header, rule, *lines))
    yield _escape(table.note)
    yield _list(f"{row.name}: {note}" for row in table.rows for note in row.notes)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _fence(code: str) -> str:
    """Return code between fences that are longer than any row of backticks in it."""
    plain = show.plain(code)
    fence = "```"
    while fence in plain:
        fence += "`"
    return f"{fence}\n{plain}\n{fence}"


def _escape(text: str) -> str:
    """Return text that Markdown shows unchanged, since a name or a message may hold anything."""
    return show.one_line(text).translate(_SPECIAL)
