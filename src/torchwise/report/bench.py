"""A benchmark on a terminal and as a page: each target with its contenders, and the summary."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.answer import Reliability
from torchwise.records.benchmark import Benchmark
from torchwise.records.scale import trust_of
from torchwise.records.suite_summary import describe_summary, summarize
from torchwise.report.bench_lines import LEGEND, Line, TargetLines, blocks
from torchwise.report.document import (
    Block,
    Cell,
    Column,
    Commands,
    Document,
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
    plot_section,
    trust_text,
)
from torchwise.report.facts import environment_section, name_report, place, when
from torchwise.report.render.html import render_page
from torchwise.report.render.terminal import render_terminal

WIDE, MEDIUM = 124, 80
"""Widths of a terminal from which the table has every figure, and from which it has all except costs and memory."""
COLUMNS = (
    Column("contender", is_wrapped=True),
    Column("per call", is_figure=True, least_width=MEDIUM),
    Column("speed-up", is_figure=True, title="speed-up (95 %)"),
    Column("cold", is_figure=True, least_width=MEDIUM),
    Column("warm", is_figure=True, least_width=WIDE),
    Column("peak memory", is_figure=True, least_width=WIDE),
    Column("roofline", is_figure=True, least_width=WIDE),
    Column("precision", least_width=WIDE),
    Column("answers", is_wrapped=True),
)
COMPARE = Step("torchwise compare BEFORE.json AFTER.json", "finds regressions between two runs with --export FILE.json")
NOTHING = "No row is finished yet."


def render_benchmark(benchmark: Benchmark, next_commands: Sequence[str] = ()) -> RenderableType:
    """Return a benchmark for a terminal: the machine, every target, the summary, and the next commands."""
    return render_terminal(_bench_document(benchmark, [Step(command, "") for command in next_commands]))


def render_bench_html(benchmark: Benchmark) -> str:
    """Return a benchmark as a page. The same benchmark always gives the same page."""
    from torchwise.report.plots.bench import plots

    return render_page(_bench_document(benchmark, [COMPARE], plots(benchmark)))


def describe_machine(benchmark: Benchmark) -> str:
    """Return machine, date and hardware peaks, in a line."""
    words = [when(benchmark.created_at)]
    if peaks := benchmark.peaks:
        words.append(f"copies {show.three(peaks.bandwidth / 1e9)} GB/s")
        words += [f"{name} {show.three(rate / 1e12)} TFLOP/s" for name, rate in peaks.flops.items()]
    return place(benchmark.environment, *words)


def _bench_document(benchmark: Benchmark, steps: Sequence[Step], plots: Sequence[Plot] = ()) -> Document:
    """Return a benchmark as a document. The summary is first on a page, and last on a terminal, where it stays seen."""
    found, targets = describe_summary(summarize(benchmark)), blocks(benchmark)
    trust = trust_of(benchmark) if benchmark.rows else None
    is_reliable = trust is not None and trust.reliability is not Reliability.UNUSABLE
    head, *rest = found or ["No row was timed." if benchmark.rows else NOTHING]
    panel = Panel("Summary", head, (Items(tuple(rest)),) if rest else (), Tone.GOOD if is_reliable else Tone.WARNING)
    ending: tuple[Block, ...] = (
        *([Text(NOTHING, tone=Tone.STRONG)] if not benchmark.rows else []),
        *([Section("Summary", (Items(tuple(found)),))] if found else []),
    )
    machine = describe_machine(benchmark)
    return Document(
        title=f"{show.pluralize(len(targets), 'target')}, side by side",
        brand=name_report("benchmark", benchmark.created_at),
        subtitles=(machine,),
        blocks=(
            *([trust_text(trust)] if trust else []),
            Only(Medium.TERMINAL, (Text(machine, tone=Tone.MUTED),)),
            Only(Medium.PAGE, (panel,)),
            *plot_section(plots),
            *(Section(target.title, (_bench_table(target),)) for target in targets),
            *([Text(LEGEND, tone=Tone.MUTED)] if benchmark.rows else []),
            Only(Medium.TERMINAL, ending),
            *([Section("Next", (Commands(tuple(steps)),))] if steps else []),
            Only(Medium.PAGE, (environment_section(benchmark.environment),)),
        ),
    )


def _bench_table(target: TargetLines) -> Table:
    """Return the contenders of one target."""
    return Table(target.title, COLUMNS, tuple(map(_bench_row, target.lines)), target.note)


def _bench_row(line: Line) -> Row:
    answers = Tone.GOOD if line.row.is_right else Tone.BAD if line.is_wrong else Tone.WARNING
    cells = (
        line.name,
        line.time,
        Cell(line.speedup, Tone.WARNING if line.is_inconclusive and line.row.is_right else Tone.PLAIN),
        line.cold,
        line.warm,
        line.memory,
        line.roofline,
        Cell(line.precision, note="" if line.precision == "native" else f"in {line.precision}"),
        Cell(line.answers, answers),
    )
    tone = Tone.GOOD if line.is_best else Tone.PLAIN if line.row.is_right else Tone.MUTED
    return Row(cells, tone, line.contender, tuple(line.remarks))
