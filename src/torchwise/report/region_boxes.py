"""The regions of row programs, as a table and as boxes over the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchwise.records import format as show
from torchwise.records.explanation import Box
from torchwise.report import document as doc

MAX_BOXES = 12
"""Boxes of a table on a terminal. A page and the record have all."""
MAX_KINDS = 6
"""Kinds of operators that one box names."""
MAX_REASONS = 3
COLUMNS = (
    doc.Column("#", is_figure=True),
    *doc.text_columns("operators"),
    *doc.figure_columns("reads", "writes"),
    *doc.text_columns("why it ends there"),
)


def list_sections(graphs: Sequence[Sequence[Box]]) -> tuple[doc.Section, ...]:
    """Return a section with a table for each graph, or nothing without row programs."""
    if not graphs:
        return ()
    several = len(graphs) > 1
    blocks: list[doc.Block] = []
    for number, boxes in enumerate(graphs, 1):
        rows = tuple(doc.Row(_cells(place, box)) for place, box in enumerate(boxes, 1))
        name = f"Regions of graph {number}" if several else "Regions of the graph"
        more = f"and {len(boxes) - MAX_BOXES} more"
        blocks += [
            doc.Text(summarize(boxes), f"Graph {number}: " if several else ""),
            doc.Table(name, COLUMNS, rows, limit=MAX_BOXES, more=more),
        ]
    return (doc.Section("Regions of row programs", tuple(blocks)),)


def summarize(boxes: Sequence[Box]) -> str:
    """Count the operators in regions and alone: "2 regions have 31 of 33 operators. 2 operators run alone."."""
    regions = [box for box in boxes if box.is_region]
    count, total = (sum(len(box.operators) for box in several) for several in (regions, boxes))
    alone = total - count
    have = "has" if len(regions) == 1 else "have"
    words = f"{show.pluralize(len(regions), 'region')} {have} {count} of {show.pluralize(total, 'operator')}."
    return f"{words} {show.pluralize(alone, 'operator')} run{'s' * (alone == 1)} alone." if alone else words


def name_operators(box: Box) -> str:
    """Name the operators of a box, the most frequent first: "mm × 4, tanh × 3 and 2 more kinds"."""
    counts = Counter(box.operators).most_common()
    words = [name if count == 1 else f"{name} × {count}" for name, count in counts[:MAX_KINDS]]
    left = len(counts) - MAX_KINDS
    return ", ".join(words) + (f" and {show.pluralize(left, 'more kind')}" if left > 0 else "")


def tell_reasons(box: Box) -> str:
    """Say why a region ends, or why an operator runs alone."""
    left = len(box.reasons) - MAX_REASONS
    words = "; ".join(box.reasons[:MAX_REASONS]) + (f"; and {left} more" if left > 0 else "")
    return words or "the graph ends there"


def _cells(number: int, box: Box) -> tuple[str, ...]:
    kind = "" if box.is_region else "alone: "
    return (
        str(number),
        show.one_line(f"{kind}{name_operators(box)}"),
        str(box.reads),
        str(box.writes),
        show.one_line(tell_reasons(box)),
    )
