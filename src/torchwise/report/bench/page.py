"""A benchmark as one self-contained page, in the layout of `base.html.j2`."""

from __future__ import annotations

from pathlib import Path

from torchwise.records.answer import Reliability
from torchwise.records.benchmark import Benchmark
from torchwise.records.scale import trust_of
from torchwise.report import summary
from torchwise.report.bench.summary import sentences, summarize
from torchwise.report.bench.table import LEGEND, blocks
from torchwise.report.bench.terminal import place
from torchwise.report.bench.themed_plots import plots
from torchwise.report.commands import Step
from torchwise.report.json_export import write_atomically
from torchwise.report.template import render

TEMPLATE = "bench.html.j2"


def write_bench_html(benchmark: Benchmark, path: str | Path) -> Path:
    """Write a benchmark as a page to `path`, whole or not at all, and return the path.

    Raises:
        StorageError: the file cannot be written.
    """
    return write_atomically(render_bench_html(benchmark), path)


def render_bench_html(benchmark: Benchmark) -> str:
    """Return a benchmark as a page. The same benchmark always gives the same page."""
    nothing = "No row was timed." if benchmark.rows else "No row is finished yet."
    head, *rest = sentences(summarize(benchmark)) or [nothing]
    trust = trust_of(benchmark) if benchmark.rows else None
    compare = Step(
        "torchwise compare BEFORE.json AFTER.json", "finds regressions between two runs with --export FILE.json"
    )
    return render(
        TEMPLATE,
        when=summary.when(benchmark.created_at),
        place=place(benchmark),
        trust=trust,
        is_reliable=trust is not None and trust.reliability is not Reliability.UNUSABLE,
        head=head,
        summary=rest,
        blocks=blocks(benchmark),
        legend=LEGEND,
        plots=plots(benchmark),
        steps=[compare],
        environment=summary.machine(benchmark.environment),
    )
