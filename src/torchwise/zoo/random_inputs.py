"""Seeded numbers for weights and inputs: drawn on the CPU in float64, so that device and dtype change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

Module = TypeVar("Module", bound=torch.nn.Module)


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a builder, besides its size.

    Attributes:
        name: the name of the workload, with its size.
        device: the device of its tensors.
        dtype: the real dtype of weights and inputs.
        seed: seed of every draw.
    """

    name: str
    device: str
    dtype: torch.dtype
    seed: int

    def draws(self, seed: int | None = None) -> Draws:
        """Start a sequence of draws from `seed`, or from the request's own."""
        return Draws(self.seed if seed is None else seed, self.device, self.dtype)


class Draws:
    """A sequence of draws from a generator of its own: the global one is neither read nor moved."""

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        self._generator = torch.Generator(device="cpu").manual_seed(seed)
        self._device = device
        self._dtype = dtype

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Draw evenly from [low, high)."""
        drawn = torch.rand(shape, generator=self._generator, dtype=torch.float64, device="cpu")
        return self._place(drawn * (high - low) + low)

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0) -> torch.Tensor:
        """Draw from a normal distribution of this mean and standard deviation."""
        return self._place(self._normal(shape) * scale + mean)

    def sphere_points(self, count: int, radius: float = 1.0) -> torch.Tensor:
        """Draw `count` points, of shape (count, 3), evenly from a sphere around the origin."""
        points = self._normal((count, 3))
        return self._place(points * (radius / torch.linalg.vector_norm(points, dim=-1, keepdim=True)))

    def module(self, make: Callable[[], Module]) -> Module:
        """Make a module, and draw its parameters so that the signal keeps its size through any depth of layers.

        Weights of two or more dimensions take He's normal initialisation (https://arxiv.org/abs/1502.01852). Vectors
        called `weight` or `scale` keep their value within a few tenths, other vectors are small and not zero. So a
        rewrite that drops or swaps one is visible in the output.
        """
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # PyTorch's own initialisation draws, too
            module = make().to(device=self._device, dtype=self._dtype)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                shape = tuple(parameter.shape)
                if len(shape) > 1:
                    parameter.copy_(self.normal(*shape, scale=math.sqrt(2 / math.prod(shape[1:]))))
                elif name.endswith(("weight", "scale")):
                    parameter.mul_(self.normal(*shape, mean=1.0, scale=0.1))
                else:
                    parameter.copy_(self.normal(*shape, scale=0.1))
        return module

    def _normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64, device="cpu")

    def _place(self, drawn: torch.Tensor) -> torch.Tensor:
        return drawn.to(device=self._device, dtype=self._dtype)
