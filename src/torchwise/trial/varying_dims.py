"""The dimensions of a workload's inputs that vary, as its plain model shows, and how they are described."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise._torch.dynamo import DIM_MARKS
from torchwise.plan.workload_spec import VaryingDim
from torchwise.workload import Example, Workload
from torchwise.workload.module_state import kept_state
from torchwise.workload.other_sizes import search_varying_dims

MAX_NAMED = 3
"""Dimensions that a note names."""


def find_varying_dims(workload: Workload) -> tuple[VaryingDim, ...]:
    """Return the dimensions that vary, tried on a copy on the CPU: an index out of range would end a GPU's context."""
    if all(t.device.type == "cpu" for example in workload.examples for t in example.tensors()):
        return search_varying_dims(workload, lambda example: _run_after(workload.call, workload.examples[0], example))
    try:
        module = workload.module
        call = workload.call if module is None else copy.deepcopy(module).to("cpu")
    except Exception:  # a model that cannot be copied is not tried at other sizes
        return ()
    examples = tuple(example.map_tensors(_copy_to_cpu) for example in workload.examples)
    return search_varying_dims(Workload(call, examples), lambda example: _run_after(call, examples[0], example))


def _copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().cpu()
    vars(copied).update({name: marks for name, marks in vars(tensor).items() if name in DIM_MARKS})
    return copied


def _run_after(call: Callable[..., Any], first: Example, example: Example) -> None:
    """Call the model on its own example and then on another one, and put back what the calls change.

    A model may keep something of the size of its first call, such as a mask, and then takes no other.
    """
    own = [each.clone() for each in (first, example)]
    with torch.no_grad(), kept_state(call, [each.args for each in own], {}):
        for each in own:
            call(*each.args, **each.kwargs)


def describe_varying(varying: Sequence[VaryingDim]) -> str:
    """Return a note on the dimensions that were found, or that there are none."""
    if not varying:
        return "sizes do not vary: none were found that the model takes beside these, so that plans are for these alone"
    dims = [f"dimension {one.dim} of {one.path} ({' and '.join(map(str, one.lengths))})" for one in varying[:MAX_NAMED]]
    rest = ", …" if len(varying) > MAX_NAMED else ""
    return f"sizes vary, and plans are verified at other ones, too: {', '.join(dims)}{rest}"
