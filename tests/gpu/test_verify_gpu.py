"""Verdicts on a GPU when PyTorch's own kernel is wrong, and the CPU has to say which side is right."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torchwise.records import Outcome  # noqa: E402
from torchwise.verify import Subject, verify  # noqa: E402
from torchwise.verify.reference import to_cpu  # noqa: E402
from torchwise.verify.step_runner import ReferenceStepRunner, StepRunner  # noqa: E402
from torchwise.workload import Example, Workload  # noqa: E402
from torchwise.zoo import Entry, list_workloads, load  # noqa: E402

pytestmark = pytest.mark.gpu
STEPS = [entry for entry in list_workloads() if entry.is_step]


class Pooled(torch.nn.Module):
    """Pools transposed features, with padding, whose gradient is wrong in eager on CUDA (see `elsewhere`)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Map (batch, 36, 64) to (batch, 64, 6, 6)."""
        plane = self.layer(patches).transpose(1, 2).unflatten(-1, (6, 6))
        return torch.nn.functional.avg_pool2d(plane, 3, stride=1, padding=1)


def test_a_verdict_says_where_it_is_eager_that_is_wrong() -> None:
    torch.manual_seed(0)
    x, on_host = torch.randn(2, 36, 64), Pooled()
    model, there = copy.deepcopy(on_host).cuda(), x.cuda()
    gradients = [torch.autograd.grad(m(i).square().sum(), m.layer.weight)[0] for m, i in ((on_host, x), (model, there))]
    off = float((gradients[1].cpu() - gradients[0]).norm() / gradients[0].norm())
    verdict = verify(Subject(Workload(model, (Example((there,)),)), torch.compile(model), model, training=True))
    told = [check.detail for check in verdict.checks if check.outcome is Outcome.FAIL]
    if off < 1e-3:  # a PyTorch in which that is fixed
        assert verdict.passed, told
    else:
        assert len(told) == 1, (off, verdict)
        assert "it is eager that is wrong here" in told[0]


@pytest.mark.parametrize("entry", STEPS, ids=lambda entry: entry.name)
def test_gradients_of_the_zoo_on_the_gpu_are_those_of_the_cpu(entry: Entry) -> None:
    workload = load(f"{entry.name}@small", device="cuda")
    if entry.stochastic:
        pytest.skip("it draws other random numbers on a CPU")
    example = workload.examples[0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ours = StepRunner(workload.step).gradients(example, seed=0)
        wide = ReferenceStepRunner(workload.step).gradients(example, seed=0)
    exact = dict(ReferenceStepRunner(workload.step, device="cpu").gradients(to_cpu(example), seed=0).leaves)
    most = 0.5 if workload.step.autocast else 1e-3
    for seen, tolerance in ((ours, most), (wide, 1e-6)):
        for name, leaf in seen.leaves:
            if leaf is not None and float(exact[name].double().norm()) > 1e-9:
                off = float((leaf.cpu().double() - exact[name]).norm() / exact[name].norm())
                assert off < tolerance, f"{name} is off by {off}"
