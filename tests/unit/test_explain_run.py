"""One real run, from the model to the explanation: a graph break, found where it is, with a price."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from torchwise.diagnose.explain import explain
from torchwise.diagnose.stages import CAPTURE, EXECUTION, GENERATION
from torchwise.errors import BaselineError, PlanError
from torchwise.records.explanation import Basis, Explanation


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:  # here
            x = x * 2
        return x.cos()


@pytest.mark.slow
def test_a_break_is_found_with_its_place_and_price(tmp_path: Path) -> None:
    told = explain(Branching(), (torch.ones(64),), artefacts=tmp_path, budget=60)
    assert Explanation.from_json(told.to_json()) == told
    (found,) = [one for one in told.findings if one.kind == "graph break"]
    assert found.places[0].file == __file__
    assert "# here" in found.places[0].excerpt
    assert found.price is not None, told.notes
    assert 0 < found.price.per_call_s.low <= found.price.per_call_s.mid <= found.price.per_call_s.high
    stages = {stage.name: stage for stage in told.stages}
    assert len(stages) == 6
    assert stages[CAPTURE].came_out.startswith("2 graphs")
    assert stages[EXECUTION].came_out.startswith("2 compiled graphs")
    assert all((tmp_path / name).read_text() for stage in told.stages for name in stage.artefacts)
    assert any(name.startswith("kernels-") for name in stages[GENERATION].artefacts)
    assert any(kernel.generated and kernel.nbytes for kernel in told.kernels)
    assert told.capturable.answer is False


class Counting(nn.Module):
    """Counts its calls, and would be several times as fast compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for _ in range(5):
            x = torch.relu(x * 1.01 + 0.1) - x * 0.5
        return x


@pytest.mark.slow
def test_what_is_given_up_comes_first_with_a_fix_that_was_seen_to_help() -> None:
    told = explain(Counting(), (torch.ones(512, 512),), budget=3)
    first = told.findings[0]
    assert first.kind == "recompile"
    assert "PyTorch gave up, and runs it in eager on every call" in first.title
    assert first.price is not None
    assert (first.price.basis, first.price.per_call_s.low > 0) == (Basis.MEASURED, True)
    # What is left of a call under the fix is a small part of it.
    assert first.price.per_call_s.mid > told.measurement.candidate_time.mid / 4
    assert "allow_unspec_int_on_nn_module = True" in first.mend
    assert "dynamic=True" not in first.mend
    assert first.tried[0].helps
    assert any("not priced, because the budget was spent" in note for note in told.notes)


def test_a_plan_must_be_one() -> None:
    with pytest.raises(PlanError, match="plan is 'nosuch', but must be a Plan"):
        explain(nn.Linear(2, 2), (torch.ones(1, 2),), plan="nosuch")  # type: ignore[arg-type]


def test_a_model_that_raises_is_the_baselines_error() -> None:
    with pytest.raises(BaselineError, match="the model raised"):
        explain(nn.Linear(2, 2), (torch.ones(3),))
