"""Build a workload from a library's model and its inputs, which are described as data.

Inputs are drawn by seed, on the CPU in float64, independent of device and dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchwise.errors import WorkloadError
from torchwise.workload import Example, Workload
from torchwise.workload.roofline import count_work
from torchwise_models.libraries.options import Options
from torchwise_models.libraries.weights import calibrate, make_seeded

CALIBRATION_BATCH = 4


@dataclass(frozen=True, slots=True)
class Normal:
    """A floating-point tensor of mean 0 and variance 1, like normalised images, latents and hidden states."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """An int64 tensor, drawn uniformly from 0 to `below` − 1: token ids, class labels, time steps."""

    shape: tuple[int, ...]
    below: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The device, dtype and memory layout of tensors.

    Attributes:
        device: the device, such as "cpu" or "cuda".
        dtype: dtype of floating-point tensors.
        channels_last: whether tensors (batch, channels, height, width) are contiguous along channels in memory.
    """

    device: str
    dtype: torch.dtype
    channels_last: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format for `Tensor.to` and `Module.to`."""
        return torch.channels_last if self.channels_last else torch.preserve_format


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
    return Workload(model, drawn, name=name, roofline=count_work(model, drawn[0].args), reseed=examples)


def draw(inputs: Any, placement: Placement, seed: int) -> tuple[Example, ...]:
    """Draw one example.

    Args:
        inputs: the positional arguments, as a tuple of `Normal` and `Whole`, with nested tuples allowed.
        placement: placement of the tensors.
        seed: seed of every draw. The global generator is neither used nor advanced.
    """
    # A different random stream from the weights, which start from the request's seed.
    generator = torch.Generator(device="cpu").manual_seed(seed + 1)
    return (Example(_draw_inputs(inputs, placement, generator)),)


def _draw_inputs(node: Any, placement: Placement, generator: torch.Generator) -> Any:
    if isinstance(node, tuple):
        return tuple(_draw_inputs(item, placement, generator) for item in node)
    if isinstance(node, Whole):
        return torch.randint(node.below, node.shape, generator=generator, device="cpu").to(placement.device)
    drawn = torch.randn(node.shape, generator=generator, dtype=torch.float64, device="cpu")
    # Only images have channels. A format for four dimensions would refuse any other tensor.
    memory_format = placement.memory_format if len(node.shape) == 4 else torch.preserve_format
    return drawn.to(placement.device, placement.dtype, memory_format=memory_format)
