"""Example inputs as data, and their seeded draws: on the CPU in float64, so that device and dtype change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchwise.workload import Example


@dataclass(frozen=True, slots=True)
class Normal:
    """A floating tensor of mean 0 and variance 1, as normalised images, latents and hidden states have."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """An int64 tensor drawn evenly from 0 to `below` − 1: token ids, class labels, time steps."""

    shape: tuple[int, ...]
    below: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors lie, and how.

    Attributes:
        device: such as "cpu" or "cuda".
        dtype: of floating tensors.
        channels_last: whether (batch, channels, height, width) lies in memory with its channels side by side.
    """

    device: str
    dtype: torch.dtype
    channels_last: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        """What `Tensor.to` and `Module.to` are given."""
        return torch.channels_last if self.channels_last else torch.preserve_format


def draw(inputs: Any, placement: Placement, seed: int) -> tuple[Example, ...]:
    """Draw one example.

    Args:
        inputs: the positional arguments as a tuple of `Normal` and `Whole`, which tuples may nest.
        placement: where the tensors end up.
        seed: of every draw; the global generator is neither read nor moved.
    """
    # Another stream than the weights, which start from the request's seed.
    generator = torch.Generator(device="cpu").manual_seed(seed + 1)
    return (Example(_drawn(inputs, placement, generator)),)


def _drawn(node: Any, placement: Placement, generator: torch.Generator) -> Any:
    if isinstance(node, tuple):
        return tuple(_drawn(item, placement, generator) for item in node)
    if isinstance(node, Whole):
        return torch.randint(node.below, node.shape, generator=generator, device="cpu").to(placement.device)
    drawn = torch.randn(node.shape, generator=generator, dtype=torch.float64, device="cpu")
    # Only images have channels; a format for four dimensions would refuse any other tensor.
    memory_format = placement.memory_format if len(node.shape) == 4 else torch.preserve_format
    return drawn.to(placement.device, placement.dtype, memory_format=memory_format)
