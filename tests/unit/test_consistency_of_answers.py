"""No two figures of a benchmark, comparison, check or analysis disagree, and untold figures are said to be so.

The noisy records are of the kinds seen beside other programs: processes that contradict each other, and
measurements without a figure.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from lock_samples import EAGER_S as LOCKED_S
from lock_samples import Worker, an_entry, make_measurement
from rich.console import Console, RenderableType

from analysis_samples import a_batch, a_steady, an_analysis, some_calls
from bench_samples import a_benchmark, a_row, ours, some_rows
from builders import EAGER_S, a_measurement, a_trial, an_inspection
from consistency_of_answers import check_analysis, check_benchmark, check_comparison, check_lock_check
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Measurement
from torchwise.records.analysis import Analysis, Memory
from torchwise.records.answer import Change
from torchwise.records.benchmark import Row
from torchwise.records.comparison import compare
from torchwise.records.listener import Listener
from torchwise.report import render_benchmark, render_comparison
from torchwise.report.analysis import render_analysis, render_analysis_html
from torchwise.report.bench import render_bench_html
from torchwise.report.bench_files import to_markdown
from torchwise.study.lock import Lock
from torchwise.study.lock.check import CheckRequest, run_check
from torchwise.study.lock.check_results import Check, State, render_check


def render_text(found: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=300, highlight=False).print(found, soft_wrap=False)
    return file.getvalue()


def noisy(candidate_s: float, eager_s: float, spread: float, *, seed: int = 0, rounds: int = 24) -> Measurement:
    """Return pairs whose medians are these, and whose times vary by this factor."""
    draw = np.random.default_rng(seed)
    own, eager = (np.exp(draw.normal(0, np.log(spread), rounds)) for _ in range(2))
    sides = (candidate_s * own / np.median(own), eager_s * eager / np.median(eager))
    return Measurement(*(tuple(side.tolist()) for side in sides))


def make_contradicting_rows(target: str = "zoo:a.b") -> tuple[Row, ...]:
    """Return rows of processes in which eager takes another time in each, and a duel with the opposite result."""
    return (
        a_row(
            "eager", target=target, measurement=noisy(0.0115, 0.0116, 1.02), costs=Costs(0.0, 0.0, 2_694_840, 2_694_840)
        ),
        a_row("default", 1.38, target=target, slowness=0.64, costs=Costs(38.2, 4.1, 1_824_522, 3_738_775)),
        a_row("max-autotune", 1.71, target=target, slowness=1.6),
        ours(1.5, 1.2, target=target, slowness=0.9),
    )


def garbage(target: str = "zoo:a.b") -> tuple[Row, ...]:
    """Return rows without a figure, as after an eager that had a quarter of its own speed."""
    return (
        a_row("eager", target=target, measurement=noisy(1.0, 0.256, 1.05)),
        a_row("default", target=target, measurement=noisy(0.993, 1.0, 40.0, seed=1)),
        a_row("max-autotune", target=target, measurement=noisy(0.2, 1.0, 6.0, seed=2)),
        replace(ours(target=target), duel=noisy(1.0, 1.1, 9.0, seed=3), duel_repeats=()),
    )


def make_inconclusive_rows(target: str = "zoo:a.b") -> tuple[Row, ...]:
    """Return rows in which one process cannot tell Torchwise from eager, and another can."""
    own = noisy(1.0, 1.05, 1.25, seed=6)
    mine = replace(
        ours(target=target, measurement=own), rival="eager", duel=a_measurement(1.5, seed=8), duel_repeats=()
    )
    return (a_row("eager", 1.0, target=target), mine)


def test_processes_that_contradict_each_other_are_in_no_mean_and_no_count() -> None:
    text = render_text(render_benchmark(a_benchmark(make_inconclusive_rows())))
    assert "torchwise over the best alternative" not in text
    assert "0 faster, 0 equal within the interval, 0 slower, 1 inconclusive" in text


@pytest.mark.parametrize(
    "rows",
    [
        make_inconclusive_rows(),
        some_rows(),
        (*some_rows("zoo:a.b"), *some_rows("zoo:c.d")),
        make_contradicting_rows(),
        garbage(),
        (*make_contradicting_rows(), *garbage("zoo:c.d"), *some_rows("zoo:e.f")),
    ],
)
def test_a_benchmark_agrees_with_itself(rows: tuple[Row, ...]) -> None:
    benchmark = a_benchmark(rows)
    check_benchmark(
        benchmark, render_text(render_benchmark(benchmark)), to_markdown(benchmark), render_bench_html(benchmark)
    )


def test_nothing_is_marked_or_summed_up_of_what_names_no_figure() -> None:
    benchmark = a_benchmark(garbage())
    text, page = render_text(render_benchmark(benchmark)), render_bench_html(benchmark)
    assert "★ " not in text.partition("★ the fastest")[0]
    assert "No contender is clearly the fastest." in text
    assert "geometric mean" not in text
    assert "1 inconclusive" in text
    assert 'class="decision none"' in page
    assert 'class="decided"' not in page


@pytest.mark.parametrize(
    "pair", [(some_rows(), some_rows()), (some_rows(), make_contradicting_rows("zoo:tutorial.fusion_demo@small"))]
)
def test_a_comparison_agrees_with_itself(pair: tuple[tuple[Row, ...], ...]) -> None:
    found = compare(*map(a_benchmark, pair))
    check_comparison(found, render_text(render_comparison(found)))


def test_a_row_that_became_five_times_as_long_is_not_called_the_same() -> None:
    """The row went from 936 µs to 5.18 ms, with a speed-up of 0.116 to 1.35 times the one before."""
    before = a_row("default", measurement=noisy(936e-6, 1.3e-3, 1.1, seed=4))
    after = a_row("default", measurement=noisy(5.18e-3, 3.2e-3, 9.0, seed=5))
    found = compare(*(a_benchmark((a_row("eager", 1.0), row)) for row in (before, after)))
    check_comparison(found, render_text(render_comparison(found)))
    assert found.rows[1].change is Change.INCONCLUSIVE
    assert found.exit_code == 4
    assert (
        render_text(render_comparison(found))
        .splitlines()[-1]
        .startswith("Inconclusive: the measurements cannot tell whether B has regressions")
    )


def a_check(*tries: Measurement) -> Check:
    return run_check(Lock().with_entries((an_entry(),)), CheckRequest(), Worker(*tries), Listener())


@pytest.mark.parametrize(
    ("tries", "state", "code"),
    [
        ((make_measurement(2.0),), State.GOOD, 0),
        ((make_measurement(1.4), make_measurement(1.4)), State.SLOWER, 1),
        ((make_measurement(2.0, 61 * LOCKED_S),) * 2, State.INCONCLUSIVE, 4),
        ((noisy(0.3, 0.305, 12.0), noisy(0.3, 0.305, 12.0, seed=1)), State.INCONCLUSIVE, 4),
        ((make_measurement(2.0, 61 * LOCKED_S), make_measurement(2.0)), State.GOOD, 0),  # the second look tells
        (
            (make_measurement(2.0, 61 * LOCKED_S), make_measurement(1.4)),
            State.INCONCLUSIVE,
            4,
        ),  # slower once, and not told once
    ],
)
def test_a_check_agrees_with_itself(tries: tuple[Measurement, ...], state: State, code: int) -> None:
    check = a_check(*tries)
    check_lock_check(check, render_text(render_check(check)))
    assert ([row.state for row in check.rows], check.exit_code) == ([state], code)


def make_disturbed_analysis(**changes: object) -> Analysis:
    """Return an analysis on whose page eager took 147, 4.34, 14.6 and 1.14 ms."""
    fields: dict[str, object] = {
        "inspection": an_inspection(
            measurement=noisy(0.147, 0.147, 1.6),
            peak_memory=9 << 20,
            shares={"gemm": 0.85, "conv": 0.84, "launch": 0.3},
        ),
        "trial": a_trial(measurement=noisy(0.0032, 0.00434, 1.05, seed=1)),
        "steady": a_steady(
            plan=some_calls(0.0100), baseline=some_calls(0.0146), memory=Memory(1, 1, 1, 1 << 20, 2 << 20)
        ),
        "batches": (a_batch(1), replace(a_batch(32), measurement=noisy(0.00084, 0.00114, 1.1, seed=2)), a_batch(64)),
        "batch_size": 32,
    }
    return an_analysis(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "analysis",
    [
        an_analysis(),
        an_analysis(batch_size=4, workload=WorkloadSpec("zoo:vision.resnet50", device="cuda", calls=10)),
        an_analysis(speedup=0.5),
        make_disturbed_analysis(),
        make_disturbed_analysis(trial=a_trial(measurement=noisy(0.0043, 0.00434, 30.0, seed=1)), steady=None),
        make_disturbed_analysis(steady=a_steady(0.27), trial=a_trial(measurement=a_measurement(10.0))),
        an_analysis(inspection=an_inspection(shares={"gemm": 0.85, "conv": 0.84})),
    ],
)
def test_an_analysis_agrees_with_itself(analysis: Analysis) -> None:
    check_analysis(analysis, render_text(render_analysis(analysis)))


def test_nothing_follows_from_what_an_analysis_cannot_tell() -> None:
    analysis = make_disturbed_analysis(steady=a_steady(0.27), trial=a_trial(measurement=a_measurement(10.0)))
    text, page = render_text(render_analysis(analysis)), render_analysis_html(analysis)
    check_analysis(analysis, text, page)
    assert re.search(r"the speed-up of inductor over eager, [\d.]+× to [\d.]+×, is too", " ".join(text.split()))
    assert "Advice" not in text
    assert "Do not compile for fewer than" not in text
    assert 'id="plot-cost"' not in page
    assert pytest.approx(analysis.cost_model.baseline_s, rel=0.02) == EAGER_S
