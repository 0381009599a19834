"""A benchmark as Markdown, for a pull request or a page of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.scale import scale_of, trust_of
from torchwise.report import format as show
from torchwise.report.bench.summary import sentences, summarize
from torchwise.report.bench.table import (
    LEGEND,
    TORCHWISE,
    Block,
    Line,
    answers_of,
    blocks,
    duel_ratio,
    line_of,
    why_no_duel,
)
from torchwise.report.bench.terminal import place

HEADER = (
    *("contender", "precision", "per call", "speed-up over eager", "cold", "warm"),
    *("peak memory", "roofline", "answers"),
)
OVERVIEW = ("target", "plan", "per call", "speed-up over eager", "over the best alternative")
TEXTS = ("contender", "precision", "answers", "target", "plan", "over the best alternative")
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#~"})


def to_markdown(benchmark: Benchmark) -> str:
    """Return the whole benchmark: the machine, the summary, and a table for each target."""
    reliability = _safe(trust_of(benchmark).sentence) if benchmark.rows else ""
    parts = ["# Benchmark", reliability, _safe(place(benchmark)), overview(benchmark)]
    for block in blocks(benchmark):
        parts += [f"## {_safe(block.title)}", _table(block), _safe(block.note)]
        if notes := [f"{line.contender}: {text}" for line in block.lines for text in line.remarks]:
            parts.append(_list(notes))
    return "\n\n".join([*filter(None, parts), _safe(LEGEND)]) + "\n"


def overview(benchmark: Benchmark) -> str:
    """Return the summary as text. If Torchwise ran on several targets, add a table with a row for each."""
    own = [row for row in benchmark.rows if row.contender == TORCHWISE]
    table = _rows(OVERVIEW, [_overview_cells(row, benchmark) for row in own]) if len(own) > 1 else ""
    return "\n\n".join(filter(None, [_list(sentences(summarize(benchmark))), table]))


def _overview_cells(row: Row, benchmark: Benchmark) -> list[str]:
    ratio = duel_ratio(row, scale_of(benchmark, row.workload))
    versus = f"{row.rival}: {show.speedup(ratio)}" if row.is_right and ratio else why_no_duel(row)
    plan, line = str(row.plan) if row.plan else show.NONE, line_of(row, benchmark)
    return [row.workload.target, plan, line.time, line.speedup, versus or ": ".join(filter(None, answers_of(row)))]


def _table(block: Block) -> str:
    return _rows(HEADER, map(_cells, block.lines))


def _rows(header: Sequence[str], rows: Iterable[list[str]]) -> str:
    rule = ["---" if name in TEXTS else "---:" for name in header]
    return "\n".join(map(_line, [header, rule, *([_safe(cell) for cell in cells] for cells in rows)]))


def _cells(line: Line) -> list[str]:
    cells = (line.name, line.precision, line.time, line.speedup, line.cold, line.warm, line.memory, line.roofline)
    return [*cells, line.answers]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_safe(text)}" for text in lines)


def _safe(text: str) -> str:
    """Return text that Markdown shows unchanged, since a name or a message may hold anything."""
    return show.one_line(text).translate(_SPECIAL)
