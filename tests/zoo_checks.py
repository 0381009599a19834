"""How the answers of reference workloads are compared, on every device."""

from __future__ import annotations

import torch

from torchwise.verify.deviation import widen_tensor
from torchwise.workload import Workload, pytree
from torchwise.zoo import Entry


def run(workload: Workload, seed: int = 0) -> list[torch.Tensor]:
    """Call it on a copy of each example. `seed` is for the noise that a stochastic workload adds by itself."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return [t for e in workload.examples for t in pytree.tensors(workload.call(*e.clone().args, **e.kwargs))]


def losses(workload: Workload, steps: int) -> list[float]:
    """Take training steps on the first batch. Return their losses."""
    torch.manual_seed(0)
    return [float(workload.call(*workload.examples[0].args)) for _ in range(steps)]


def least_agreement(entry: Entry, workload: Workload) -> float:
    """Return how far, relatively, the loss of a step may be from float64's."""
    return 0.02 if workload.step and workload.step.autocast else 0.05 if entry.stochastic else 1e-5


def inputs(workload: Workload) -> list[torch.Tensor]:
    return pytree.tensors([(example.args, dict(example.kwargs)) for example in workload.examples])


def continuous(found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Leave out whole numbers and masks: they may be zero, and equal from seed to seed."""
    return [t for t in found if t.is_floating_point() or t.is_complex()]


def worst_error(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """Return the largest error over the largest value, of the worst tensor. Whole numbers and masks must be equal."""
    worst = 0.0
    for mine, right in zip(ours, reference, strict=True):
        if continuous([right]):
            assert right.dtype in (torch.float64, torch.complex128)
            worst = max(worst, float((widen_tensor(mine) - right).abs().max() / right.abs().max()))
        else:
            assert torch.equal(mine, right)
    return worst
