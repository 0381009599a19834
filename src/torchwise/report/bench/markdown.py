"""A benchmark as Markdown, for a pull request or a page of results."""

from __future__ import annotations

from collections.abc import Iterable

from torchwise.records.benchmark import Benchmark
from torchwise.report import format as show
from torchwise.report.bench.summary import sentences, summarize
from torchwise.report.bench.table import LEGEND, Block, Line, blocks
from torchwise.report.bench.terminal import place

HEADER = (
    *("contender", "precision", "per call", "speed-up over eager", "cold", "warm"),
    *("peak memory", "roofline", "answers"),
)
TEXTS = ("contender", "precision", "answers")
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~"})


def to_markdown(benchmark: Benchmark) -> str:
    """Return the whole benchmark: where it ran, the summary, and a table for each target."""
    parts = ["# Benchmark", _safe(place(benchmark))]
    if found := sentences(summarize(benchmark)):
        parts.append(_list(found))
    for block in blocks(benchmark):
        parts += [f"## {_safe(block.title)}", _table(block)]
        if notes := [f"{line.contender}: {text}" for line in block.lines for text in line.remarks]:
            parts.append(_list(notes))
    return "\n\n".join([*parts, _safe(LEGEND)]) + "\n"


def _table(block: Block) -> str:
    rule = ["---" if name in TEXTS else "---:" for name in HEADER]
    return "\n".join(map(_line, [HEADER, rule, *map(_cells, block.lines)]))


def _cells(line: Line) -> list[str]:
    cells = (line.name, line.precision, line.time, line.speedup, line.cold, line.warm, line.memory, line.roofline)
    return [_safe(cell) for cell in (*cells, line.answers)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_safe(text)}" for text in lines)


def _safe(text: str) -> str:
    """Return text that Markdown shows as it is: a name or a message may hold anything."""
    return show.one_line(text).translate(_SPECIAL)
