"""Build a workload from a library's model and a description of its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchwise.errors import WorkloadError
from torchwise.model_libraries.inputs import Placement, draw
from torchwise.model_libraries.options import Options
from torchwise.model_libraries.weights import calibrate, make_seeded
from torchwise.model_libraries.work import count
from torchwise.workload import Workload

CALIBRATION_BATCH = 4


def build(
    name: str,
    make: Callable[[], nn.Module],
    inputs: Callable[[int], tuple[Any, ...]],
    options: Options,
    *,
    device: str,
    dtype: torch.dtype | None,
    seed: int,
) -> Workload:
    """Build the workload.

    Args:
        name: name in reports, which is the target as given.
        make: constructor of the model, whose outputs are tensors or tuples of them.
        inputs: function from a batch size to the model's positional arguments, in the form for `draw`.
        options: the options, of which `batch`, `dtype`, `channels_last` and `train` are read here.
        device: device of weights and inputs.
        dtype: their dtype if the options name none, or None for float32.
        seed: seed of every draw.

    Raises:
        WorkloadError: the dtype is no floating-point type.
    """
    if options.dtype is not None:
        dtype = getattr(torch, options.dtype)
    dtype = dtype or torch.float32
    if not dtype.is_floating_point:
        raise WorkloadError(f"dtype is {dtype}, but must be a floating-point type, such as torch.float32")
    placement = Placement(device, dtype, "channels_last" in options.flags)
    model = make_seeded(make, seed)
    # A different draw from the examples, of several images, as one image may leave a channel without variance.
    calibrate(model, draw(inputs(CALIBRATION_BATCH), Placement("cpu", torch.float32), seed + 1)[0].args)
    model.to(device=device, dtype=dtype)
    if placement.channels_last:
        torch.nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
    model.train("train" in options.flags)
    examples = functools.partial(draw, inputs(options.number("batch")), placement)
    drawn = examples(seed)
    return Workload(model, drawn, name=name, roofline=count(model, drawn[0].args), reseed=examples)
