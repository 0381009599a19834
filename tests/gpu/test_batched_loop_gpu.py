"""Loops over independent samples that run at once on a GPU: in eager, compiled, and captured."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchwise.compile import compile_plan  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.records import Outcome  # noqa: E402
from torchwise.verify import Subject, verify  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402

pytestmark = pytest.mark.gpu


class Samples(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Images one by one, and heads of their own for their sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten())
        self.heads = torch.nn.ModuleList(torch.nn.Linear(8 * 14 * 14, 4) for _ in range(5))
        self.eval().cuda()

    def forward(self, images: Any) -> Any:
        features = torch.cat([self.stem(image[None]) for image in images])
        return features, torch.stack([head(features) for head in self.heads])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("capture", ["none", "call"])
def test_samples_and_heads_at_once_pass(backend: str, capture: str) -> None:
    model, images = Samples(), torch.randn(6, 3, 16, 16, device="cuda")
    workload = Workload(model, (Example((images,)),))
    plan = Plan(backend=backend, transforms=("batched_loop",), capture=capture)
    with torch.no_grad():
        compiled = compile_plan(model, plan, workload.examples[0], device="cuda", mode="inference")
        verdict = verify(Subject(workload, compiled.call, model))
        compiled.close()
    assert verdict.outcome is Outcome.PASS, verdict.reason
