"""Options of Inductor that searches of effort thorough try on a GPU: each compiles, and its answers are right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan, three_tf32  # noqa: E402
from torchwise.plan import Numerics, Plan  # noqa: E402
from torchwise.plan.choice import load_choices  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.trial import Job  # noqa: E402
from torchwise.trial.experiment import PlanCandidate, PlanExperiment  # noqa: E402
from torchwise.workload import Example  # noqa: E402

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


class Net(torch.nn.Module):
    """Two linear layers, the first on several tensors side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, 512), torch.nn.Linear(512, 64)

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        x = torch.cat([parts[0], torch.sin(parts[1])], -1) if len(parts) > 1 else parts[0]
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("widths", [(256,), (319,), (63, 256)], ids=["even", "odd", "concatenated"])
def test_products_of_three_tf32_are_written_and_as_exact_as_float32(widths, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net(sum(widths)).cuda().eval()
    parts = tuple(torch.randn(8192, width, device="cuda") for width in widths)
    only_own = Plan(backend="inductor", options=((three_tf32.OPTION, "TRITON,TF32X3"),))
    with torch.no_grad():
        exact, eager = net.double()(*(part.double() for part in parts)), net.float()(*parts)
        compiled = compile_plan(net, only_own, Example(parts, {}), device="cuda", mode="inference")
        answer = compiled.call(*parts)
        net.first.weight.mul_(2)  # its parts are computed in each call
        doubled = (compiled.call(*parts), net(*parts))
    errors = [float((one.double() - exact).norm() / exact.norm()) for one in (answer, eager)]
    assert errors[0] < 2 * errors[1] < 1e-6, errors
    torch.testing.assert_close(*doubled, rtol=1e-5, atol=1e-5)
    written = [file.read_text() for file in tmp_path.rglob("*.py")]
    assert any("input_precision=ALLOW_TF32" in text and 'constexpr = "tf32x3"' in text for text in written), "second"
    assert any("KEPT : tl.constexpr" in text and "big_b = tl.load(BIG + at_b)" in text for text in written), "first"
