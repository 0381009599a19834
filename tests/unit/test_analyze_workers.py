"""An analysis with real workers. Eager is the plan, so that nothing has to be compiled."""

from __future__ import annotations

import pytest
import torch

from torchwise.diagnose.analyze import analyze

pytestmark = pytest.mark.usefixtures("brief_searches")


def test_a_live_model_is_looked_at_from_its_baseline_to_its_batches() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    inputs = (torch.randn(16, 64),)
    found = analyze(model, inputs, plan="eager", effort="quick", batches=(3,), progress=False).record
    assert found.trial.is_verified
    assert found.steady is not None
    assert len(found.steady.plan.calls_s) == len(found.steady.baseline.calls_s) >= 60
    assert found.steady.memory.model == (64 * 64 + 64 + 64 * 8 + 8) * 4
    assert found.steady.memory.inputs == 16 * 64 * 4
    assert found.batch_note == "dimension 0 of the inputs, of size 16 in the given inputs"
    assert [(batch.size, batch.reason) for batch in found.batches] == [(3, "")]
    assert found.batches[0].eager is not None, "eager at 3 items was timed against eager at 16"
    assert len(found.batches[0].eager.baseline_s) >= 5
    assert [figures.size for figures in found.batch_figures] == [3]
    assert "This plan is eager" in found.advice[0].text
    assert found.environment.device == "cpu"


def test_training_is_looked_at_with_its_backward_pass_and_what_is_no_batch_is_said() -> None:
    loss, inputs = _Loss(), (torch.randn(4, 8),)
    found = analyze(loss, inputs, plan="eager", effort="quick", mode="training", batches=(2,), progress=False)
    assert found.record.trial.is_verified
    assert found.record.workload.mode == "training"
    assert found.record.batches == ()
    assert found.record.batch_note.startswith("not scaled: no output grows with dimension 0")


class _Loss(torch.nn.Module):
    """Returns a loss, which has no batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()
