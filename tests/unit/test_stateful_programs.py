"""A few of the random programs that keep state. `tests/fuzz/stateful_programs.py` runs as many as one likes."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import stateful_programs
import torch

from torchwise.compile import CompiledPlan
from torchwise.plan import Plan
from torchwise.records import Outcome
from torchwise.trial.plain_call import run_plainly

PLANS = [*stateful_programs.PLANS.values()]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 8))])
@pytest.mark.usefixtures("dynamo_afresh", "plainly_compiled", "one_thread")
def test_a_program_is_judged_and_served_as_it_runs_plainly(seed: int) -> None:
    said = stateful_programs.check_program(seed, PLANS[seed % len(PLANS)])
    assert said in ("right", "refused: it raises", "refused: it is wrong", "not comparable")


@torch.no_grad()
def test_a_plan_that_keeps_the_state_to_itself_is_never_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def realize(call: Any, plan: Plan, *_: Any, **__: Any) -> CompiledPlan:
        forgetful = copy.deepcopy(call)
        return CompiledPlan(plan, forgetful, lambda _args, _kwargs: forgetful, lambda: None)

    monkeypatch.setattr(stateful_programs, "compile_plan", realize)
    judged = 0
    for seed in range(12):
        _, workload = stateful_programs.workload_of(seed)
        if all(path.startswith("input") for path in run_plainly(workload, "inference").moves):
            continue
        verdict = stateful_programs._verdict(workload, PLANS[0], stateful=True)
        judged += 1
        assert verdict is None or verdict.outcome is not Outcome.PASS, stateful_programs.write_program(seed)
    assert judged > 5
