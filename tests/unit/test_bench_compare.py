"""Two benchmarks compared: real changes are seen, a slower machine fails nothing, and all intervals hold together."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench_samples import a_benchmark, a_row, fail_row
from builders import HERE, WRONG
from torchwise import cli
from torchwise.errors import InputError
from torchwise.records import Measurement
from torchwise.records.answer import Answer, Change
from torchwise.records.benchmark import Benchmark, Row, RowState
from torchwise.records.comparison import compare
from torchwise.report import export, render_comparison
from torchwise.report.bench import sentence


def changes(a: tuple[Row, ...], b: tuple[Row, ...], threshold: float = 0.05) -> dict[str, Change]:
    return {row.contender: row.change for row in compare(a_benchmark(a), a_benchmark(b), threshold).rows}


def change(a: Row, b: Row, threshold: float = 0.05) -> Change:
    return changes((a,), (b,), threshold)[a.contender]


# The judgement.


def test_the_same_benchmark_has_no_change() -> None:
    found = compare(a_benchmark(), a_benchmark())
    assert found.regressed is Answer.NO
    assert {row.change for row in found.rows} == {Change.SAME, Change.NOT_COMPARED}
    assert found.differences == ()
    assert "missing: openvino runs on the CPU here in both" in {row.detail for row in found.rows}


@pytest.mark.parametrize(
    ("speedup", "expected"), [(1.2, Change.SLOWER), (1.46, Change.SAME), (1.54, Change.SAME), (1.9, Change.FASTER)]
)
def test_a_change_beyond_the_threshold_is_seen(speedup: float, expected: Change) -> None:
    assert change(a_row(speedup=1.5), a_row(speedup=speedup, seed=9)) is expected


def test_a_slower_machine_fails_nothing() -> None:
    """Everything takes a third longer, and eager does, too: the speed-up stays."""
    before = (a_row("eager", 1.0), a_row())
    after = (a_row("eager", 1.0, slowness=1.33), a_row(slowness=1.33))
    assert changes(before, after) == {"eager": Change.DRIFT, "default": Change.SAME}
    assert compare(a_benchmark(before), a_benchmark(after)).regressed is Answer.NO


def test_a_faster_eager_is_no_regression_of_the_others() -> None:
    """Eager takes two thirds, and the contender as long as before: its speed-up fell, and its time did not grow."""
    after = a_row(speedup=1.0, slowness=1 / 1.5, seed=5)
    assert change(a_row(speedup=1.5), after) is Change.SAME


def test_a_threshold_decides_what_is_worth_a_word() -> None:
    assert change(a_row(speedup=1.5), a_row(speedup=1.2, seed=9), 0.4) is Change.SAME
    assert change(a_row(speedup=1.5), a_row(speedup=1.46, seed=9), 0.0) is Change.SLOWER


SPREAD = np.exp(np.linspace(-2.0, 2.0, 12))
EVEN = np.ones(12)


@pytest.mark.parametrize(("candidate", "eager"), [(SPREAD, SPREAD), (EVEN, SPREAD), (SPREAD, EVEN)])
def test_what_noise_hides_is_inconclusive_and_never_the_same(candidate: np.ndarray, eager: np.ndarray) -> None:
    """The medians differ by half, as two medians of such samples may, in times, in speed-ups, or in both."""

    def noisy(seconds: float) -> Row:
        return a_row(measurement=Measurement(tuple(seconds * candidate), tuple(eager)))

    (row,) = compare(a_benchmark((noisy(1.0),)), a_benchmark((noisy(1.5),))).rows
    assert row.time
    assert row.time.mid == pytest.approx(1.5)
    assert row.change is Change.INCONCLUSIVE


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (a_row(verdict=WRONG), Change.WRONG),
        (a_row(speedup=9.0, verdict=WRONG), Change.WRONG),
        (fail_row(a_row()), Change.LOST),
        (a_row(state=RowState.FAILED, reason="from warm caches: timed out"), Change.LOST),
        (a_row(speedup=None, state=RowState.MISSING, reason="not installed"), Change.LOST),
    ],
)
def test_wrong_and_lost_rows_are_regressions_and_the_way_back_is_none(b: Row, expected: Change) -> None:
    assert change(a_row(), b) is expected
    assert expected.is_regression
    back = change(b, a_row())
    assert back is {Change.WRONG: Change.RIGHT, Change.LOST: Change.GAINED}[expected]
    assert not back.is_regression


def test_an_absent_row_is_lost_only_where_b_holds_its_target_and_its_contender() -> None:
    def rows(*pairs: str) -> tuple[Row, ...]:
        return tuple(a_row(pair.split()[1], target=pair.split()[0]) for pair in pairs)

    a = rows("zoo:a.a default", "zoo:a.a thunder", "zoo:b.b default", "zoo:b.b thunder")
    expected = [
        (rows("zoo:a.a default", "zoo:b.b default"), Change.NOT_COMPARED),  # thunder was not asked for
        (rows("zoo:a.a default", "zoo:a.a thunder"), Change.NOT_COMPARED),  # nor was zoo:b.b
        (rows("zoo:a.a default", "zoo:a.a thunder", "zoo:b.b default"), Change.LOST),
    ]
    for b, kind in expected:
        last = next(
            row
            for row in compare(a_benchmark(a), a_benchmark(b)).rows
            if (row.target, row.contender) == ("zoo:b.b", "thunder")
        )
        assert last.change is kind
    failed_before = (*a[:3], fail_row(a[3]))
    assert compare(a_benchmark(failed_before), a_benchmark(expected[2][0])).regressed is Answer.NO


def test_eager_only_drifts_but_can_be_lost() -> None:
    assert change(a_row("eager", 1.0), a_row("eager", 1.0, slowness=2.0)) is Change.DRIFT
    assert change(a_row("eager", 1.0), a_row("eager", 1.0, slowness=0.5)) is Change.DRIFT
    assert change(a_row("eager", 1.0), a_row("eager", 1.0, verdict=WRONG)) is Change.SAME
    assert change(a_row("eager", 1.0), fail_row(a_row("eager"))) is Change.LOST


def test_precisions_are_never_compared() -> None:
    found = compare(a_benchmark((a_row("torchwise"),)), a_benchmark((a_row("torchwise", 9.0, precision="bf16"),)))
    (row,) = found.rows
    assert (row.change, row.time) == (Change.NOT_COMPARED, None)
    assert "native in A, bf16 in B" in row.detail


def test_all_intervals_hold_together() -> None:
    rows = tuple(a_row(target=f"zoo:a.b{number}") for number in range(10))
    assert compare(a_benchmark(rows[:1]), a_benchmark(rows[:1])).confidence == pytest.approx(0.95)
    found = compare(a_benchmark(rows), a_benchmark(rows))
    assert found.confidence == pytest.approx(0.995)
    alone = compare(a_benchmark(rows[:1]), a_benchmark(rows[:1])).rows[0].time
    assert alone
    assert found.rows[0].time
    assert found.rows[0].time.half_width > alone.half_width


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), float("inf")])
def test_a_threshold_below_zero_is_refused(threshold: float) -> None:
    with pytest.raises(InputError, match=f"threshold is {threshold}, but must be at least 0"):
        compare(a_benchmark(), a_benchmark(), threshold)


def test_benchmarks_that_share_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="the two benchmarks share no row"):
        compare(a_benchmark((a_row(),)), a_benchmark((a_row(target="zoo:a.b"),)))


# The output, and the command.


def render_text(a: Benchmark, b: Benchmark) -> str:
    file = io.StringIO()
    Console(file=file, width=300).print(render_comparison(compare(a, b)))
    return file.getvalue()


def test_other_environments_are_said_first_and_stop_nothing() -> None:
    b = a_benchmark(environment=replace(HERE, torch="2.14.0", driver="600.1"))
    lines = [line for line in render_text(a_benchmark(), b).splitlines() if line]
    assert lines[0].startswith("The machine was quiet: ratios hold within about ")
    assert lines[1] == "A and B ran in different environments, which may cause changes:"
    assert [line.strip() for line in lines[2:4]] == [
        "torch: 2.13.0+cu130 in A, 2.14.0 in B",
        "driver: 580.65.06 in A, 600.1 in B",
    ]
    assert "different environments" not in render_text(a_benchmark(), a_benchmark())


def test_every_change_is_shown_with_its_figures() -> None:
    a = (a_row("eager", 1.0), a_row("default", 1.5), a_row("thunder", 1.5))
    b = (
        a_row("eager", 1.0, slowness=1.4),
        a_row("default", 1.0, slowness=1.4),
        a_row("thunder", 1.5, verdict=WRONG, slowness=1.4),
    )
    found = render_text(a_benchmark(a), a_benchmark(b))
    assert (
        "zoo:tutorial.fusion_demo@small (inference on cuda), default: its time per call changed by 2.10× [2.0" in found
    )
    assert "its speed-up over eager by 0.66" in found
    assert ", from 1.50× [" in found
    assert "thunder: not right: values: output[0] is off" in found
    assert "Drift of eager" in found
    assert found.splitlines()[-1] == "B has regressions, beyond 5.0 %: 1 slower, 1 wrong, 1 drift."
    assert sentence(compare(a_benchmark(a), a_benchmark(a))) == "B has no regression, beyond 5.0 %: 3 same."


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["torchwise", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def test_the_command_exits_with_0_1_2_or_4(tmp_path: Path, monkeypatch, capsys) -> None:
    before = export(a_benchmark((a_row(speedup=1.5),)), tmp_path / "a.json")
    after = export(a_benchmark((a_row(speedup=1.2),)), tmp_path / "b.json")
    assert run(monkeypatch, before, before) == 0
    assert run(monkeypatch, after, before) == 0
    assert run(monkeypatch, before, after, "--json", tmp_path / "c.json") == 1
    assert run(monkeypatch, before, after, "--threshold", "0.5") == 0
    assert "B has regressions" in capsys.readouterr().out
    wide = a_row(measurement=Measurement((0.1, 1.0, 10.0) * 4, (1.0,) * 12))
    untold = export(a_benchmark((wide,)), tmp_path / "w.json")
    assert run(monkeypatch, before, untold) == run(monkeypatch, untold, before) == 4
    assert "Inconclusive: the measurements cannot tell whether B has regressions" in capsys.readouterr().out
    assert run(monkeypatch, before, tmp_path / "none.json") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(monkeypatch, before, after, "--json", tmp_path / "nowhere" / "c.json") == 2
    assert "there is no folder" in capsys.readouterr().err
    written = json.loads((tmp_path / "c.json").read_text())
    assert written["schema"] == "torchwise.comparison/1"
    (row,) = written["rows"]
    assert (row["change"], row["contender"]) == ("slower", "default")
    assert row["time"]["low"] > 1.05
    assert row["speedup"]["high"] < 1 / 1.05
