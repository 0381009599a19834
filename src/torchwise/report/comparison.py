"""A comparison of two benchmarks on a terminal: first the differences of the machines, then the regressions."""

from __future__ import annotations

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.answer import Answer, Change
from torchwise.records.comparison import Comparison, RowComparison
from torchwise.report.document import Block, Document, Items, Section, Text, Tone, change_tone, trust_text
from torchwise.report.render.terminal import render_terminal

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
    Answer.YES: ("B has regressions", Tone.BAD),
    Answer.NO: ("B has no regression", Tone.GOOD),
    Answer.INCONCLUSIVE: ("Inconclusive: the measurements cannot tell whether B has regressions", Tone.WARNING),
}


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return a comparison for a terminal. The sentence with the counts comes last, where a log ends."""
    differences = Section(
        "A and B ran in different environments, which may cause changes:",
        (Items(comparison.differences),),
        Tone.WARNING,
    )
    found = ((change, comparison.select_rows(change)) for change in TITLES)
    blocks: tuple[Block, ...] = (
        *([trust_text(comparison.trust)] if comparison.trust else []),
        *([differences] if comparison.differences else []),
        *(
            Section(TITLES[change], (Items(tuple(map(_describe_row, rows))),), change_tone(change))
            for change, rows in found
            if rows
        ),
        Text(sentence(comparison), tone=OUTCOMES[comparison.regressed][1]),
    )
    return render_terminal(Document("Comparison of two benchmarks", blocks))


def sentence(comparison: Comparison) -> str:
    """Return the outcome in a sentence."""
    counts = [f"{len(found)} {change}" for change in Change if (found := comparison.select_rows(change))]
    return f"{OUTCOMES[comparison.regressed][0]}, beyond {show.percent(comparison.threshold)}: {', '.join(counts)}."


def _describe_row(row: RowComparison) -> str:
    return f"{show.one_line(row.target)} ({row.mode} on {row.device}), {show.one_line(row.contender)}: {row.detail}"
