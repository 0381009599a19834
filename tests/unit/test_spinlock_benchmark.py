"""The benchmark of the stochastic operator: its steps are legal plans, and its figures are those of the trials."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sketches import PASSED, a_trial

from torchwise.errors import PlanError
from torchwise.plan import EAGER, Plan
from torchwise.records import Check, Outcome, Verdict
from torchwise.records.scale import BatchFit, SizeTried

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WHOLE = Plan(
    precision="bf16",
    memory_format="channels_last",
    transforms=("group_norm",),
    backend="inductor",
    options=(("max_autotune_pointwise", True),),
    capture="call",
)


@pytest.fixture
def spinlock(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("spinlock")


def test_each_step_has_one_change_more(spinlock: ModuleType) -> None:
    steps = spinlock.list_steps(WHOLE)
    named = ["group_norm", "bf16", "channels_last", "capture call", "inductor", "max_autotune_pointwise"]
    assert [step.change for step in steps] == named
    assert steps[0].plan == Plan(transforms=("group_norm",))
    assert steps[-1].plan == WHOLE
    assert spinlock.list_steps(EAGER) == []


def test_changes_that_only_go_together_are_one_step(spinlock: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"precision": "bf16", "capture": "call"}

    def make_plan(**fields: Any) -> Plan:
        if fields != whole:
            raise PlanError("only together")
        return Plan(**fields)

    monkeypatch.setattr(spinlock, "Plan", make_plan)
    [step] = spinlock.list_steps(Plan(**whole))
    assert (step.change, step.plan) == ("bf16, capture call", Plan(**whole))


def test_the_table_has_the_gain_of_each_step_and_names_what_failed(spinlock: ModuleType) -> None:
    first, second, _ = steps = spinlock.list_steps(Plan(precision="bf16", transforms=("group_norm",), capture="call"))
    wrong = Verdict((Check("values", Outcome.FAIL, "it is off"),))
    trials = [a_trial(first.plan, 1.2), a_trial(second.plan, 1.8, verdict=wrong)]
    rows = [*spinlock.tabulate(steps, trials)][3:]
    assert "1.20×" in rows[0]
    assert "| 1.50× |" in rows[1]
    assert rows[1].endswith(" fail |")
    assert rows[2].endswith(" not tried |")


def test_the_proof_of_noise_is_that_of_the_plan(spinlock: ModuleType) -> None:
    proof = Verdict((*PASSED.checks, Check("distribution", Outcome.PASS, "21 tests show no difference")))
    assert [*spinlock.prove_noise(WHOLE, [a_trial(EAGER), a_trial(WHOLE, 2.0, verdict=proof)])] == [
        "- distribution: pass. 21 tests show no difference"
    ]
    assert [*spinlock.prove_noise(WHOLE, [])] == ["No check of its noise was made."]


def test_batches_are_on_the_scale_of_the_plans_speedup_at_the_given_one(spinlock: ModuleType) -> None:
    fit = BatchFit("zoo:x", WHOLE, (SizeTried(5, 300.0), SizeTried(10, 450.0), SizeTried(20, 900.0, problem="is slow")))
    best, lines = spinlock.describe_batches(fit, 5, 2.0)
    assert best == 3.0
    assert lines[2].startswith("| 5 | 300 | 2.00× |"), "as the table of the plan says"
    assert lines[3].startswith("| 10 | 450 | 3.00× |")
    assert "| 20 | is slow |" in lines[4]
