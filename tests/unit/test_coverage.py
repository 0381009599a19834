"""The experiment on coverage: its results for pools of processes whose truth is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sketches import HERE, make_measurement

from torchwise.records import Measurement

ROOT = Path(__file__).parents[2]


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_coverage", ROOT / "benchmarks" / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def processes(ratio: float, spread: float, count: int, seed: int = 0) -> list[Measurement]:
    """Return measurements of a plan whose speed-up differs from process to process by a known spread."""
    rng = np.random.default_rng(seed)
    mids = [ratio * float(np.exp(rng.normal(0.0, spread))) for _ in range(count)]
    return [make_measurement(0.99 * mid, 1.01 * mid) for mid in mids]


@pytest.mark.parametrize(
    ("ratio", "spread", "answer"),
    [(1.05, 0.005, "faster"), (1 / 1.05, 0.005, "no gain"), (1.0, 0.002, "no gain")],
)
def test_a_group_is_told_as_a_search_tells_it(coverage: ModuleType, ratio: float, spread: float, answer: str) -> None:
    told = [coverage.tell(processes(ratio, spread, 5, seed), HERE, "standard").answer for seed in range(20)]
    assert told.count("faster") == (20 if answer == "faster" else 0), told
    assert max(set(told), key=told.count) == answer, told


def test_processes_that_contradict_each_other_make_no_winner(coverage: ModuleType) -> None:
    told = [coverage.tell(processes(1.0, 0.4, 5, seed), HERE, "standard") for seed in range(40)]
    assert sum(one.answer == "faster" for one in told) <= 1
    assert any(one.answer == "inconclusive" and one.processes == 5 for one in told)


def test_a_search_ends_after_as_many_processes_as_make_it_plain(coverage: ModuleType) -> None:
    for ratio, count in ((2.0, 2), (1.3, 3), (1.05, 5), (0.9, 1)):
        told = coverage.tell(processes(ratio, 0.001, 5), HERE, "standard")
        assert told.processes == count, "what is no gain in its own process has no other"


def test_the_sides_of_a_measurement_are_swapped(coverage: ModuleType) -> None:
    assert coverage.swap_sides(make_measurement(1.25)).speedup.mid == pytest.approx(0.8)


def test_the_report_tells_coverage_and_answers(coverage: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "GROUPS", 40)
    columns = [processes(1 + more / 100, 0.005, 12, seed=more) for more in coverage.PLANTED]
    found = [dict(zip(map(str, coverage.PLANTED), row, strict=True)) for row in zip(*columns, strict=True)]
    pool = coverage.Pool(HERE, "standard", busy=False, date="2026-11-25", processes=tuple(found))
    assert coverage.Pool.from_json(pool.to_json()) == pool
    lines = {line[:30].strip(): line.split() for line in coverage.report(pool).splitlines()}
    assert lines["the model against 10 % more"][-3:] == ["100.0%", "0.0%", "0.0%"]
    assert lines["10 % more"][-3:] == ["0.0%", "100.0%", "0.0%"]
    assert lines["the model against itself"][-3] == "0.0%", "nobody wins against himself"
