"""Options of Inductor that searches of effort thorough try on a GPU: each compiles, and its answers are right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchwise.plan import Numerics, Plan  # noqa: E402
from torchwise.plan.choice import load_choices  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.trial import Job  # noqa: E402
from torchwise.trial.experiment import PlanCandidate, PlanExperiment  # noqa: E402

pytestmark = pytest.mark.gpu
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.up, self.down = nn.Conv2d(8, 16, 1), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        y = self.conv(x).flatten(2).mT
        y = self.down(self.up(y).relu())
        return torch.softmax(y.flatten(1), -1) + torch.exp(-y.flatten(1).square()) / (1 + y.flatten(1).abs().sqrt())

def make():
    return Net().cuda().eval(), (torch.randn(4, 8, 32, 32, device="cuda"),)
"""


@pytest.mark.parametrize("name", ["use_fast_math", "triton.cooperative_reductions", "b2b_gemm_pass", "conv_1x1_as_mm"])
def test_an_option_is_verified(name: str, tmp_path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    plan = Plan(backend="inductor", options=((name, True),))
    assert Numerics.LOWER_PRECISION.allows(load_choices()["options", (name, True)].numerics)
    trial = PlanExperiment(Job("try", WorkloadSpec(f"{file}:make", "cuda"), plan), PlanCandidate(plan))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        verdict = trial.verify(lambda _stage: None)
    assert verdict.outcome is Outcome.PASS, verdict.reason
