"""The benchmark of the stochastic operator: its figures at larger batches."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from torchwise.plan import Plan
from torchwise.records.scale import BatchFit, SizeTried

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WHOLE = Plan(transforms=("group_norm",), backend="inductor", capture="call")


@pytest.fixture
def spinlock(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("spinlock")


def test_batches_are_on_the_scale_of_the_plans_speedup_at_the_given_one(spinlock: ModuleType) -> None:
    fit = BatchFit("zoo:x", WHOLE, (SizeTried(5, 300.0), SizeTried(10, 450.0), SizeTried(20, 900.0, problem="is slow")))
    best, lines = spinlock.describe_batches(fit, 5, 2.0)
    assert best == 3.0
    assert lines[2].startswith("| 5 | 300 | 2.00× |"), "as the table of the plan says"
    assert lines[3].startswith("| 10 | 450 | 3.00× |")
    assert "| 20 | is slow |" in lines[4]
