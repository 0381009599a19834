"""A third opinion: the model in float64 on the CPU, asked where a candidate fails on another device.

Eager and its float64 reference run the same kernels of a device. Where one of those is wrong both are, in the same way,
and a candidate that does without it looks wrong: the gradient of `avg_pool2d` on CUDA, for padded inputs whose channels
lie innermost, is such a one (torch 2.11, https://github.com/pytorch/pytorch/issues/188344).

The candidate fails all the same, for it does not do what the model does here. Who hears so should hear who is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torchwise.records import Check
from torchwise.verify.compare import errors_of
from torchwise.verify.observe import Observation
from torchwise.workload import trees
from torchwise.workload.workload import Example

if TYPE_CHECKING:
    import torch

LONGEST_S = 0.1
"""Seconds of eager's own call from which the CPU is not asked: it would take minutes."""
WRONG = 1e-3
"""Relative error of eager from which it is wrong and not rounded."""
WORSE = 10.0
"""Times the candidate's error that eager's must be."""


def on_cpu(example: Example) -> Example:
    """Return the example with its tensors on the CPU."""
    return example.map_tensors(lambda t: t.detach().cpu().requires_grad_(t.requires_grad))


def is_on_cpu(example: Example) -> bool:
    """Whether there is no other device to doubt."""
    return all(tensor.device.type == "cpu" for tensor in trees.tensors((example.args, dict(example.kwargs))))


def doubted(
    check: Check, ours: Observation, eager: Callable[[], Observation], elsewhere: Callable[[], Observation]
) -> Check:
    """Return a failed check, with what the CPU says to it where that is against eager.

    Args:
        check: the check that failed.
        ours: what the candidate made of an example.
        eager: makes what eager makes of it, once more, for its time is taken.
        elsewhere: makes what float64 makes of it on the CPU; may raise anything.
    """
    start = time.perf_counter()
    theirs = _numbers(eager())
    float(sum(leaf.sum().abs().float() for leaf in theirs.values()))  # waits for the device
    if time.perf_counter() - start > LONGEST_S:
        return check
    try:
        exact = _numbers(elsewhere())
    except Exception:  # a model may insist on its device, or refuse float64, in any way
        return check
    mine = _numbers(ours)
    both = [name for name in mine if name in exact]
    errors = {name: (_off(theirs.get(name), exact[name]), _off(mine[name], exact[name])) for name in both}
    if not errors:
        return check
    name = max(errors, key=lambda name: errors[name][0])
    wrong, right = errors[name][0], max(own for _, own in errors.values())
    if not (math.inf > wrong > WRONG and wrong > WORSE * right):
        return check
    return replace(
        check,
        detail=f"{check.detail}. Yet it is eager that is wrong here: held against float64 on the CPU, {name} is off by "
        f"{wrong:.2g} in eager, and by {right:.2g} at most in this plan",
    )


def _numbers(seen: Observation) -> dict[str, torch.Tensor]:
    """Return the tensors that can be off by a little."""
    import torch

    leaves = {name: leaf for name, leaf in seen.leaves if isinstance(leaf, torch.Tensor)}
    return {name: leaf for name, leaf in leaves.items() if leaf.is_floating_point() or leaf.is_complex()}


def _off(tensor: torch.Tensor | None, exact: torch.Tensor) -> float:
    """Return the relative error, root mean square; infinite where it is of another form, or finite elsewhere."""
    import torch

    if tensor is None or tensor.shape != exact.shape:
        return math.inf
    value = tensor.cpu()
    return errors_of(value, exact).rms if torch.equal(value.isfinite(), exact.isfinite()) else math.inf
