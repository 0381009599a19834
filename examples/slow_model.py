"""The model of the tutorial (docs/tutorial.md), which is slow although it is compiled, and its fix.

torchwise explain examples/slow_model.py:make
"""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two layers with a learned temperature between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        h = nn.functional.gelu(self.up(x))
        temperature = self.temperature.item()
        return x + self.down(torch.tanh(h / temperature))


class FixedBlock(Block):
    """The same block, with the temperature as a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        h = nn.functional.gelu(self.up(x))
        return x + self.down(torch.tanh(h / self.temperature))


class Net(nn.Module):
    """Three blocks."""

    def __init__(self, block: type[Block], width: int = 64) -> None:
        super().__init__()
        self.first, self.second, self.third = block(width), block(width), block(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        return self.third(self.second(self.first(x)))


def make(block: type[Block] = Block, seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and its example inputs."""
    torch.manual_seed(seed)
    return Net(block).eval(), (torch.randn(32, 64),)


def make_fixed(seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the fixed model, with the same weights and inputs."""
    return make(FixedBlock, seed)
