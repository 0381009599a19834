"""Describe example inputs as data, and draw them by seed, on the CPU in float64, independent of device and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchwise.workload import Example


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
