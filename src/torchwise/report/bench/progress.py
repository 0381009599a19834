"""A benchmark while it runs: one live line on a terminal, one line per event in a log."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.benchmark import Benchmark, Row
from torchwise.report import format as show
from torchwise.report.bench.table import Line, line_of
from torchwise.report.progress import Progress


class BenchProgress(Progress):
    """Listener of a benchmark that shows target, contender, stage and time spent, and each finished row.

    Attributes:
        benchmark: the benchmark so far, or None before the first row.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Benchmark], object] = lambda _: None,
    ) -> None:
        """Show on `console` (standard error if None), and give every new state of the benchmark to `keep`."""
        super().__init__(console, clock=clock)
        self.benchmark: Benchmark | None = None
        self._keep = keep
        self._target, self._task, self._leader = "", "measuring the peaks of the hardware", "no row is done yet"

    def target(self, workload: WorkloadSpec, number: int, total: int) -> None:
        """Start target `number` of `total`."""
        self._target = f"{number}/{total} {show.one_line(workload.target)}"
        self._begin(f"{self._target}: profiling the model")

    def contender(self, name: str) -> None:
        """Start a contender."""
        self._begin(f"{self._target}: {show.one_line(name)}")

    def step(self, description: str) -> None:
        """Start a contender's next step: a trial of its search, or a comparison of two contenders in one process."""
        self._begin(f"{self._target}: {show.one_line(description)}")

    def row(self, benchmark: Benchmark, row: Row) -> None:
        """Keep a finished row first, and then report it."""
        self.benchmark = benchmark
        self._keep(benchmark)
        self.stage("")
        self._say(f"{show.one_line(row.workload.target)}: {to_log_line(line_of(row, benchmark))}")
        self._leader = f"{show.pluralize(len(benchmark.rows), 'row')} done"
        self._task = self._target

    def update_row(self, benchmark: Benchmark, row: Row) -> None:  # noqa: ARG002 - the final table shows it
        """Keep a row that was timed in another process."""
        self.benchmark = benchmark
        self._keep(benchmark)
        self.stage("")


def to_log_line(line: Line) -> str:
    """Return a finished row as one log line, without times per call. Further processes may change its figures."""
    answers = f"{line.answers} ({line.why})" if line.why else line.answers
    if not line.row.is_timed:
        return f"{line.contender}: {answers}"
    precision = "" if line.precision == "native" else f" in {line.precision}"
    parts = [f"{line.contender}, so far: {line.speedup}{precision}", f"first call +{line.cold}"]
    return ", ".join([*parts, answers, *filter(None, [line.choice])])
