"""Contenders with cold processor caches: which ones are timed so, and how tables tell of it."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench_samples import Workers, a_benchmark, a_row, a_spec, ours
from builders import samples
from consistency_of_answers import check_benchmark
from torchwise.bench import BenchRequest
from torchwise.bench.contender_worker import contend, warm
from torchwise.bench.request import ContenderJob
from torchwise.bench.run import run_benchmark
from torchwise.cli import app
from torchwise.errors import InputError
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.comparison import compare
from torchwise.report.bench import render_bench_html, render_benchmark
from torchwise.report.bench_files import to_csv, to_markdown
from torchwise.trial import Job

TARGET = f"{Path(__file__).parent.parent / 'targets' / 'misbehaving.py'}:wrong"


def cold(row: Row, *speedups: float) -> Row:
    """Return a row that some of its processes timed with cold caches, too."""
    assert row.performance is not None
    processes = [
        replace(one, cold_candidate_s=samples(2e-2 / ratio, seed=place), cold_baseline_s=samples(2e-2, seed=place + 1))
        for place, (one, ratio) in enumerate(zip(row.performance.processes, speedups, strict=False))
    ]
    first, *more = processes + list(row.performance.processes[len(processes) :])
    return replace(row, performance=replace(row.performance, measurement=first, repeats=tuple(more)))


def test_what_times_no_single_calls_is_refused() -> None:
    with pytest.raises(InputError, match="objective 'throughput', but are only for latency"):
        BenchRequest(("zoo:tutorial.fusion_demo",), ("eager",), objective="throughput", cold=True)
    done = CliRunner().invoke(app, ["bench", "tutorial", "--cold", "--objective", "throughput"])
    assert "only for latency" in str(done.exception)


class Asked(Workers):
    """Remembers which contests ask for cold caches."""

    def run(self, job: Any, *more: Any) -> Any:
        if isinstance(job, ContenderJob):
            self.asked.add((job.contender, job.job.cold))
        return super().run(job, *more)


@pytest.mark.parametrize("asks", [False, True])
def test_all_but_eager_are_timed_so_where_that_is_asked(asks: bool) -> None:
    workers = Asked()
    vars(workers)["asked"] = set()
    request = BenchRequest(("zoo:tutorial.fusion_demo",), ("eager", "default", "max-autotune"), warm=False, cold=asks)
    run_benchmark(request, workers, Heard())  # type: ignore[arg-type]
    assert vars(workers)["asked"] == {("eager", False), ("default", asks), ("max-autotune", asks)}


def test_a_worker_that_ends_while_it_times_them_costs_the_row_nothing() -> None:
    class Dying(Workers):
        def run(self, job: Any, *more: Any) -> Any:
            answer = super().run(job, *more)
            dies = isinstance(job, ContenderJob) and job.job.cold
            return Failure(FailureKind.OUT_OF_MEMORY, WorkerStage.MEASURE_COLD, "SIGKILL") if dies else answer

    request = BenchRequest(("zoo:tutorial.fusion_demo",), ("eager", "default"), cold=True)
    rows = run_benchmark(request, Dying(), Heard()).rows  # type: ignore[arg-type]
    assert [row.is_right for row in rows] == [True, True]
    assert not any(row.failure for row in rows)


class Heard:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("step", [contend, warm])
@pytest.mark.parametrize("asks", [False, True])
def test_a_contest_times_cold_caches_where_that_is_asked(
    step: Any, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[int] = []
    monkeypatch.setattr("torchwise.trial.harness.make_eviction", lambda device: lambda: evicted.append(1))
    effort = replace(EFFORTS["quick"], measure_s=0.01)
    contest = ContenderJob(step.__name__, Job("try", WorkloadSpec(TARGET), effort=effort, cold=asks), "eager")
    found = step(contest, lambda stage: None).measurement
    assert found.candidate_s
    assert bool(found.cold_candidate_s) is bool(evicted) is asks


def render_text(benchmark: Benchmark) -> str:
    file = io.StringIO()
    Console(file=file, width=300).print(render_benchmark(benchmark))
    return file.getvalue()


def rows() -> tuple[Row, ...]:
    return (
        a_row("eager", 1.0),
        cold(a_row("default", 1.3), 0.7, 0.7, 0.71),
        cold(a_row("reduce-overhead", 1.4), 1.0, 1.2, 1.1),
        cold(a_row("max-autotune", 1.5), 1.45, 1.4, 1.45, 1.42, 1.44),
        cold(a_row("thunder", 0.8), 0.7, 0.7, 0.71),
        ours(),
    )


def test_every_output_names_both_figures_and_says_where_a_gain_is_lost() -> None:
    benchmark = a_benchmark(rows())
    text, markdown, page = render_text(benchmark), to_markdown(benchmark), render_bench_html(benchmark)
    check_benchmark(benchmark, text, markdown, page)
    assert text.count("with hot processor caches") == 4
    for contender, said in (
        ("default", ". With cold caches it is slower than eager."),
        ("reduce-overhead", "it may be no faster than eager: the measurements cannot tell."),
        ("max-autotune", ""),
        ("thunder", ""),
    ):
        line = next(line for line in text.splitlines() if f"{contender}: with hot processor caches" in line)
        assert said in line
        assert bool(said) is ("With cold" in line)


def test_caches_that_could_not_be_emptied_are_told_at_the_row_and_not_as_a_busy_machine() -> None:
    why = "not timed with cold processor caches: emptying the caches takes a buffer of 100 MiB"
    row = a_row("default", 1.3)
    assert row.performance is not None
    noted = replace(row.performance, measurement=replace(row.performance.measurement, notes=(why,)))
    benchmark = a_benchmark((a_row("eager", 1.0), replace(row, performance=noted)))
    for text in (render_text(benchmark), to_markdown(benchmark)):
        assert "The machine was quiet" in text
        assert text.count(why) == 1
    trust = compare(benchmark, benchmark).trust
    assert trust is not None
    assert why not in trust.sentence


def test_the_checker_sees_a_cold_figure_of_others() -> None:
    benchmark = a_benchmark(rows())
    text, markdown, page = render_text(benchmark), to_markdown(benchmark), render_bench_html(benchmark)
    with pytest.raises(AssertionError, match="cold"):
        check_benchmark(benchmark, text.replace("with cold caches 1.4", "with cold caches 1.7"), markdown, page)
    with pytest.raises(AssertionError, match="cold"):
        check_benchmark(benchmark, text, markdown.replace("With cold caches it is slower", ""), page)


def test_csv_has_a_column_for_it() -> None:
    cells = {line["contender"]: line for line in csv.DictReader(io.StringIO(to_csv(a_benchmark(rows()))))}
    assert 1.4 < float(cells["max-autotune"]["cold_caches_speedup_ratio"]) < 1.46
    assert cells["torchwise"]["cold_caches_speedup_ratio"] == ""


def test_a_row_s_samples_come_back_as_they_were() -> None:
    benchmark = a_benchmark((cold(a_row("default", 1.3, workload=a_spec()), 1.2),))
    assert Benchmark.from_json(benchmark.to_json()) == benchmark
