"""The page of a benchmark: the conclusion first, every row of every target, and plots with their figures."""

from __future__ import annotations

import re

import pytest

from bench_samples import PEAKS, a_benchmark, a_row, a_spec, ours, some_rows
from torchwise.records.benchmark import RowState
from torchwise.report.bench import render_bench_html
from torchwise.report.plots.bench import plots

HOSTILE = "\"'><script>alert(1)</script>\x1b[31m{{ 7*7 }}\u202e</style>\x00"


@pytest.fixture(scope="module")
def page() -> str:
    return render_bench_html(a_benchmark((*some_rows(), *some_rows("my.module:factory"))))


def test_the_summary_comes_first_and_every_row_of_every_target_follows(page: str) -> None:
    first = page.split("</section>")[0]
    assert "torchwise over eager: 1.70×" in first
    assert "torchwise over the best alternative: 1.13×" in first
    assert "2 targets, side by side" in page
    for target in ("zoo:tutorial.fusion_demo@small, inference on cuda", "my.module:factory, inference on cuda"):
        assert target in page
    assert page.count('<tr role="row"') == 2 * (1 + 8)
    assert page.count('class="decided"') == 2
    assert "died in compile: SIGSEGV" in page
    assert "the fastest contender with correct answers at its level" in page


def test_ids_are_unique_and_met_and_nothing_is_fetched(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'aria-labelledby="([^"]+)"', page)) <= set(ids)
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)|src=|https?://", page)


def test_plots_are_the_speedup_and_where_it_is_known_the_roofline() -> None:
    speedups, shares = plots(a_benchmark())
    assert (speedups.key, shares.key) == ("speedup", "roofline")
    assert speedups.summary == "The highest is torchwise, at 1.70×, on tutorial.fusion_demo@small."
    rows = {line[1]: line for line in speedups.table}
    assert "eager" not in rows
    assert rows["aot-inductor"][3] == "not right"
    assert rows["default"][2].startswith("1.30× [1.30")
    assert [plot.key for plot in plots(a_benchmark(peaks=None))] == ["speedup"]
    assert PEAKS.bandwidth > 0


def test_a_wrong_answer_is_never_the_highest_however_fast() -> None:
    (speedups,) = plots(a_benchmark(tuple(r for r in some_rows() if r.contender == "aot-inductor"), peaks=None))
    assert speedups.summary == "No answer is correct."


def test_a_benchmark_of_nothing_and_of_failures_is_shown_too() -> None:
    assert "No row is finished yet." in render_bench_html(a_benchmark(()))
    failed = a_row("default", None, state=RowState.FAILED, reason="it hung")
    page = render_bench_html(a_benchmark((failed,), peaks=None))
    assert "it hung" in page
    assert "<figure" not in page


def test_hostile_names_are_shown_as_text() -> None:
    rows = (a_row("eager", 1.0, workload=a_spec(HOSTILE)), a_row(HOSTILE, 1.2, workload=a_spec(HOSTILE)))
    page = render_bench_html(a_benchmark((*rows, ours(workload=a_spec(HOSTILE), reason=HOSTILE))))
    assert "<script" not in page
    assert page.count("</style>") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


def test_the_same_benchmark_gives_the_same_page() -> None:
    page = render_bench_html(a_benchmark())
    assert render_bench_html(a_benchmark()) == page
