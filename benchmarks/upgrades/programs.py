"""Small programs of three kinds to lock, and public functions, for checks of other releases of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def make_layers(seed: int = 0) -> Made:
    """Return layers with a normalisation, and a batch."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)).eval()
    return model, (torch.randn(256, 128),)


def make_convolutions(seed: int = 0) -> Made:
    """Return convolutions, and an image."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Sigmoid()
    ).eval()
    return model, (torch.rand(2, 3, 48, 48),)


def step_diffusion(field: torch.Tensor) -> torch.Tensor:
    """Take ten explicit steps of the heat equation on a periodic grid."""
    for _ in range(10):
        around = field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1)
        field = field + 0.2 * (around - 4 * field)
    return field


def make_diffusion(seed: int = 0) -> Made:
    """Return steps of the heat equation, and a field."""
    return step_diffusion, (torch.rand(192, 192, generator=torch.Generator().manual_seed(seed)),)


def make_softmax(seed: int = 0) -> Made:
    """Return a softmax of rows."""
    return torch.softmax, (torch.randn(300, 500, generator=torch.Generator().manual_seed(seed)), -1)


def make_solve(seed: int = 0) -> Made:
    """Return the solution of linear systems."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(60, 60, generator=generator, dtype=torch.float64)
    return torch.linalg.solve, (matrix @ matrix.mT + torch.eye(60), torch.randn(60, 3, generator=generator).double())


def make_attention(seed: int = 0) -> Made:
    """Return attention."""
    generator = torch.Generator().manual_seed(seed)
    return functional.scaled_dot_product_attention, tuple(torch.randn(2, 4, 64, 32, generator=generator) for _ in "qkv")
