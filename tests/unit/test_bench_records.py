"""Rows, peaks and benchmarks as records: JSON both ways, which rows are right, the rival, and the share of the peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench_samples import PEAKS, ROOFLINE, a_benchmark, a_row, a_spec, fail_row, ours, some_rows
from builders import EAGER_S, UNCLEAR, WRONG
from torchwise.errors import InputError
from torchwise.plan.workload_spec import Roofline
from torchwise.records import Measurement
from torchwise.records.benchmark import Benchmark, Peaks, Row, RowState, rival_of, rivals_of
from torchwise.records.scale import scale_of
from torchwise.report import read_benchmark


def test_json_keeps_everything() -> None:
    benchmark = a_benchmark()
    assert Benchmark.from_json(benchmark.to_json()) == benchmark


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "torchwise.bench/1", "environment": 1}'])
def test_what_is_no_benchmark_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no Benchmark"):
        Benchmark.from_json(text)


def test_another_schema_is_refused() -> None:
    text = replace(a_benchmark(), schema="torchwise.bench/9").to_json()
    with pytest.raises(InputError, match=r"schema is 'torchwise.bench/9', but this version reads 'torchwise.bench/1'"):
        Benchmark.from_json(text)


@pytest.mark.parametrize(
    ("candidate", "eager"), [((), ()), ((), (1.0,)), ((1.0, 2.0), (1.0,)), ((0.0,), (1.0,)), ((1.0,), (-1.0,))]
)
def test_samples_that_give_no_time_are_refused(candidate, eager, tmp_path: Path) -> None:
    bare = Measurement(candidate, eager)
    for row in (a_row("max-autotune", measurement=bare), replace(ours(), duel=bare)):
        file = tmp_path / "bench.json"
        file.write_text(a_benchmark((a_row(), row)).to_json())
        with pytest.raises(InputError) as error:
            read_benchmark(file)
        assert str(error.value).startswith(f"{file}: this is no Benchmark: ")
        none = f"the samples of {row.contender} on {row.workload.target} give no time: there must be at least one"
        said = [
            none,
            "must have as many",
            "_s[0] is 0.0, but must be a number > 0",
            "is -1.0, but must be a number > 0",
        ]
        assert any(words in str(error.value) for words in said)
        assert "\n" not in str(error.value)


def test_targets_are_listed_once_and_hold_their_rows() -> None:
    rows = (*some_rows("zoo:a.b@small"), *some_rows("zoo:c.d@small"))
    benchmark = a_benchmark(rows)
    assert [workload.target for workload in benchmark.workloads] == ["zoo:a.b@small", "zoo:c.d@small"]
    assert benchmark.select_rows(benchmark.workloads[1]) == rows[len(rows) // 2 :]


def test_a_row_is_the_same_one_whatever_was_found() -> None:
    row = a_row()
    assert row.key == fail_row(row).key
    others = {a_row(workload=a_spec(**{name: value})).key for name, value in (("mode", "training"), ("device", "cpu"))}
    assert row.key not in others | {a_row("eager").key, a_row(target="zoo:a.b").key}
    assert len(others) == 2


@pytest.mark.parametrize(
    ("row", "is_right"),
    [(a_row(), True), (a_row(overwrites=True), True), (a_row(verdict=WRONG), False), (a_row(verdict=UNCLEAR), False)],
)
def test_only_what_passed_is_right(row, is_right: bool) -> None:
    assert row.is_right is is_right
    assert not fail_row(row).is_right


def test_what_fails_from_warm_caches_keeps_its_figures_and_is_not_right() -> None:
    row = a_row(state=RowState.FAILED, reason="from warm caches: timed out")
    assert row.speedup
    assert not row.is_timed
    assert not row.is_right
    assert rival_of((row,), ours()) is None


def test_the_rival_is_the_fastest_right_contender_of_the_same_class() -> None:
    rows = some_rows()
    rival = rival_of(rows, rows[-1])
    assert rival is not None
    assert rival.contender == "max-autotune"  # aot-inductor is faster, and wrong
    lowered = a_row("thunder", 9.0, precision="bf16")
    assert rival_of((*rows, lowered), rows[-1]) is rival
    assert rival_of((*rows, lowered), ours(precision="bf16")) is lowered
    assert rival_of(rows, ours(precision="tf32")) is None


def test_a_quicker_call_makes_a_second_rival() -> None:
    rows = (a_row("default", 1.4), a_row("max-autotune", 1.5), ours())
    assert rivals_of(rows, rows[-1]) == [rows[1]]
    in_a_tie, quicker = (a_row("default", 1.4, slowness=slowness) for slowness in (1.4 / 1.5 * 0.99, 0.8))
    assert rivals_of((in_a_tie, *rows[1:]), rows[-1]) == [rows[1]]
    assert rivals_of((quicker, *rows[1:]), rows[-1]) == [rows[1], quicker]
    wrong = a_row("default", 1.4, slowness=0.8, verdict=WRONG)
    assert rivals_of((wrong, *rows[1:]), rows[-1]) == [rows[1]]
    assert rivals_of(rows[-1:], rows[-1]) == []


def test_the_roofline_is_the_slower_of_bytes_and_operations() -> None:
    peaks = Peaks(100.0, {"float32": 1000.0})
    assert peaks.least_s(Roofline(flops=500.0, bytes=10.0), "float32") == 0.5
    assert peaks.least_s(Roofline(flops=500.0, bytes=80.0), "float32") == 0.8
    assert peaks.least_s(Roofline(flops=500.0, bytes=10.0), "float64") == 0.1  # no rate is known, so bytes alone


def test_the_share_of_the_roofline_is_known_only_where_all_of_it_is() -> None:
    def share(row: Row, peaks: Peaks | None = PEAKS) -> float | None:
        found = scale_of(a_benchmark((row,)), row.workload).find_scaled(row)
        return found.roofline_share(peaks) if found else None

    eager = a_row("eager", 1.0)
    assert share(eager) == pytest.approx(ROOFLINE.bytes / PEAKS.bandwidth / EAGER_S, rel=0.02)
    assert share(eager, None) is None
    assert share(a_row(roofline=None)) is None
    assert share(fail_row(eager)) is None
    assert share(a_row(measurement=Measurement((1.0,) * 12, (0.8, 1.6) * 6))) is None  # its time is inconclusive
