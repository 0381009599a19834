"""A comparison of two benchmarks on a terminal: first the differences of the machines, then the regressions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from torchwise.records.answer import Answer
from torchwise.report import format as show
from torchwise.report import layout
from torchwise.report.comparison import Comparison, RowComparison
from torchwise.report.regression import Change

TITLES = {
    Change.SLOWER: "Slower",
    Change.WRONG: "No longer correct",
    Change.LOST: "Lost: timed in A, but not in B",
    Change.INCONCLUSIVE: "Inconclusive: the measurements cannot tell whether it changed",
    Change.FASTER: "Faster",
    Change.RIGHT: "Correct now",
    Change.GAINED: "Gained: timed in B, but not in A",
    Change.DRIFT: "Drift of eager, by the machine or eager itself: no regression",
    Change.NOT_COMPARED: "Not compared",
}
"""Headings in display order. Unchanged rows are only counted."""
OUTCOMES = {
    Answer.YES: ("B has regressions", "bold red"),
    Answer.NO: ("B has no regression", "bold green"),
    Answer.INCONCLUSIVE: ("Inconclusive: the measurements cannot tell whether B has regressions", "bold yellow"),
}
"""Text and style of each outcome of a comparison."""


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return a comparison. The sentence with the counts comes last, where a log ends."""
    parts: list[RenderableType] = [layout.trust_line(comparison.trust)] if comparison.trust else []
    if comparison.differences:
        words = "A and B ran in different environments, which may cause changes:"
        parts.append(_section(words, [show.one_line(text) for text in comparison.differences], "bold yellow"))
    for change, title in TITLES.items():
        if found := comparison.select_rows(change):
            parts.append(_section(title, [_line(row) for row in found], _style(change)))
    return Group(*parts, Text(sentence(comparison), style=OUTCOMES[comparison.regressed][1]))


def sentence(comparison: Comparison) -> str:
    """Return the outcome in a sentence."""
    counts = [f"{len(found)} {change}" for change in Change if (found := comparison.select_rows(change))]
    return f"{OUTCOMES[comparison.regressed][0]}, beyond {show.percent(comparison.threshold)}: {', '.join(counts)}."


def _style(change: Change) -> str:
    return "bold red" if change.is_regression else "bold yellow" if change is Change.INCONCLUSIVE else "bold"


def _line(row: RowComparison) -> str:
    return f"{show.one_line(row.target)} ({row.mode} on {row.device}), {show.one_line(row.contender)}: {row.detail}"


def _section(title: str, lines: Sequence[str], style: str) -> RenderableType:
    return Group(Text(title, style=style), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines), Text())
