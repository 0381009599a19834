"""A benchmark on a terminal: a block for each target, then the summary, then the next commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from torchwise.records.benchmark import Benchmark
from torchwise.records.scale import trust_of
from torchwise.report import format as show
from torchwise.report import layout
from torchwise.report.bench.summary import sentences, summarize
from torchwise.report.bench.table import LEGEND, Block, Line, blocks
from torchwise.report.layout import Column, paragraph, section
from torchwise.report.summary import place as format_place
from torchwise.report.summary import when

WIDE, MEDIUM = 124, 80
"""Widths from which the table has every figure, and from which it has all except costs and memory."""

_NAME: Column[Line] = ("contender", False, lambda line: line.name)
_ANSWERS: Column[Line] = ("answers", False, lambda line: line.answers)
_NARROW: tuple[Column[Line], ...] = (_NAME, ("speed-up", True, lambda line: line.speedup), _ANSWERS)
_MEDIUM: tuple[Column[Line], ...] = (
    _NAME,
    ("per call", True, lambda line: line.time),
    ("speed-up", True, lambda line: line.speedup),
    ("cold", True, lambda line: line.cold),
    _ANSWERS,
)
_WIDE: tuple[Column[Line], ...] = (
    *_MEDIUM[:4],
    ("warm", True, lambda line: line.warm),
    ("peak memory", True, lambda line: line.memory),
    ("roofline", True, lambda line: line.roofline),
    ("precision", False, lambda line: line.precision),
    _ANSWERS,
)
_COLUMNS = ((WIDE, _WIDE), (MEDIUM, _MEDIUM), (0, _NARROW))


def render_benchmark(benchmark: Benchmark, next_commands: Sequence[str] = ()) -> RenderableType:
    """Return a benchmark: the machine, every target, the summary, and the next commands."""
    parts: list[RenderableType] = [layout.trust_line(trust_of(benchmark))] if benchmark.rows else []
    parts.append(Text(place(benchmark), style="dim"))
    parts += [_BlockView(block) for block in blocks(benchmark)]
    if not benchmark.rows:
        parts.append(Text("No row is finished yet.", style="bold"))
    else:
        parts.append(Text(f"\n{LEGEND}", style="dim"))
    if found := sentences(summarize(benchmark)):
        parts.append(section("Summary", map(paragraph, found)))
    if next_commands:
        parts.append(section("Next", [paragraph(show.plain(text), style="cyan") for text in next_commands]))
    return Group(*parts)


def place(benchmark: Benchmark) -> str:
    """Return machine, date and hardware peaks, in a line."""
    words = [when(benchmark.created_at)]
    if peaks := benchmark.peaks:
        words.append(f"copies {show.three(peaks.bandwidth / 1e9)} GB/s")
        words += [f"{name} {show.three(rate / 1e12)} TFLOP/s" for name, rate in peaks.flops.items()]
    return format_place(benchmark.environment, *words)


class _BlockView:
    """A block with as many columns as fit. Text that does not fit a cell follows below the table."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, lines = options.max_width, self._block.lines
        choices = [columns for least, columns in _COLUMNS if width >= least]
        table = layout.fill_table(choices, lines, _style, wrapped=("contender", "answers"), width=width)
        has_precision = any(column.header == "precision" for column in table.columns)
        yield Text(f"\n{self._block.title}", style="bold")
        yield table
        if self._block.note:
            yield paragraph(self._block.note, style="yellow")
        for line in lines:
            precision = "" if has_precision or line.precision == "native" else f"in {line.precision}"
            for text in filter(None, (precision, *line.remarks)):
                yield paragraph(text, f"{line.contender}: ")


def _style(line: Line, column: str) -> str:
    if column == "answers" and not line.row.is_right:
        return "red" if line.is_wrong else "yellow"
    if line.is_inconclusive and line.row.is_right:
        return "yellow"
    return "bold green" if line.is_best else "" if line.row.is_right else "dim"
