"""A third opinion: the model in float64 on the CPU, for a candidate whose numbers fail on another device.

Eager and its float64 reference run the same kernels of a device. If one of those is wrong, both are, in the same way,
and a candidate without that kernel looks wrong. An example is the gradient of `avg_pool2d` on CUDA, for padded inputs
whose channels lie innermost (torch 2.11, https://github.com/pytorch/pytorch/issues/188344). Two float64s that differ
show it: rounding does not explain that.

The candidate fails all the same, as it differs from the model on this device. But the report should say who is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.deviation import errors_of
from torchwise.verify.observe import Observation
from torchwise.verify.reference import widen_tensor
from torchwise.workload.workload import Example

NUMBERS = (CheckName.VALUES, CheckName.GRADIENTS, CheckName.GRADIENT_SCALE)
"""Names of the checks that compare numbers with the reference."""
MAX_S = 0.1
"""Seconds that float64 may take on the device: a CPU takes hundreds of times as long as a GPU made for it."""
LARGEST = 2**31
"""Bytes of a model in float64 that may be copied to the host's memory."""
DIFFERENT = 1e-6
"""Relative difference of two float64s that no rounding explains."""
AGREES, WORSE = 5e-2, 10.0
"""Relative error from the CPU's float64 up to which a candidate is right, and times it that the device's is wrong."""
NOTHING = 1e-6
"""Size of a tensor, relative to all tensors, up to which it is a rounding of zero and says nothing."""


def is_doubtful(check: Check, example: Example, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a check failed over numbers of a device other than the CPU, for a model that the host can hold.

    Args:
        check: any check.
        example: the inputs of the model.
        tensors: parameters and buffers.
    """
    if check.outcome is not Outcome.FAIL or check.name not in NUMBERS:
        return False
    state = list(tensors)
    used = [*state, *example.tensors()]
    return not is_on_cpu(used) and sum(8 * t.numel() for t in state) <= LARGEST


def is_on_cpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether there is no other device to doubt."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


def to_cpu(example: Example) -> Example:
    """Return the example with its tensors on the CPU."""
    return example.clone(lambda tensor: tensor.cpu())


def compare_with_cpu(
    check: Check,
    observe_candidate: Callable[[], Observation],
    observe_here: Callable[[], Observation | None],
    observe_on_cpu: Callable[[], Observation | None],
) -> Check:
    """Return a failed check, with the CPU's answer in its detail if that speaks against the device.

    Args:
        check: the check that failed.
        observe_candidate: observes the candidate on an example.
        observe_here: observes float64 on the device, or returns None if it cannot run.
        observe_on_cpu: observes float64 on the CPU.
    """
    try:
        start = time.perf_counter()
        reference = _numbers(observe_here())
        took = time.perf_counter() - start  # copying to the CPU has waited for the device
        if not reference or took > MAX_S:
            return check
        exact = _numbers(observe_on_cpu(), "cpu")
        candidate = _numbers(observe_candidate())
    except Exception:  # a model may insist on its device, or refuse float64, in any way, and memory may be full
        return check
    whole = max((float(leaf.abs().square().mean().sqrt()) for leaf in exact.values()), default=0.0)
    judged = [name for name in exact if float(exact[name].abs().square().mean().sqrt()) > NOTHING * whole]
    wrong = {name: _relative_error(reference.get(name), exact[name]) for name in judged}
    name = max(wrong, key=lambda name: wrong[name], default=None)
    if name is None or not DIFFERENT < wrong[name] < math.inf:
        return check
    right = max(_relative_error(candidate.get(other), exact[other]) for other in judged)
    if not (right < AGREES and WORSE * right < wrong[name]):
        return check
    return replace(
        check,
        detail=f"{check.detail}. Yet it is eager that is wrong here: compared with float64 on the CPU, {name} is off "
        f"by {wrong[name]:.2g} in float64 on this device, and nothing by more than {right:.2g} in this plan",
    )


def _numbers(observation: Observation | None, device: str | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors that can be off by a little, in float64 on the CPU.

    Raises:
        ValueError: one is not on the device that they should be on.
    """
    leaves = (
        [(name, leaf) for name, leaf in observation.leaves if isinstance(leaf, torch.Tensor)] if observation else []
    )
    if device and any(leaf.device.type != device for _, leaf in leaves):
        raise ValueError(f"the model keeps a tensor elsewhere than on {device}")
    numbers = [(n, t) for n, t in leaves if t.layout is torch.strided and not t.is_nested and t.numel()]
    return {n: widen_tensor(t.cpu()) for n, t in numbers if t.is_floating_point() or t.is_complex()}


def _relative_error(tensor: torch.Tensor | None, exact: torch.Tensor) -> float:
    """Return the relative error (root mean square). It is infinite if the shape or the finite elements differ."""
    if tensor is None or tensor.shape != exact.shape or not torch.equal(tensor.isfinite(), exact.isfinite()):
        return math.inf
    return errors_of(tensor, exact).rms
