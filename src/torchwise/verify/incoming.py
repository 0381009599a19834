"""Incoming gradients for a pair: hidden weights of all outputs, so that a backward pass cannot do without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.workload import layouts, pytree

SUM = 0
"""The seed that stands for a plain sum, whose gradient is one number expanded to the outputs' shape."""
QUARTERS = 8
"""Weights are up to so many quarters, of either sign: exact in every dtype, and never zero."""


def make_loss(seed: int) -> Callable[[Any], torch.Tensor | None]:
    """Return the loss of outputs, weighted by numbers that the seed decides. A lone scalar is weighted, too."""

    def loss_of(outputs: Any) -> torch.Tensor | None:
        generator = torch.Generator().manual_seed(seed)
        parts = [part for t in pytree.tensors(outputs) if t.requires_grad for _, part in layouts.list_strided_parts(t)]
        terms = [_weigh(part, seed, generator) for part in parts if part.requires_grad]
        return torch.stack([term.real.double() for term in terms]).sum() if terms else None

    return loss_of


def _weigh(part: torch.Tensor, seed: int, generator: torch.Generator) -> torch.Tensor:
    if seed == SUM:
        return part.sum()
    quarters = torch.randint(1, QUARTERS + 1, part.shape, generator=generator)
    signs = 1 - 2 * torch.randint(2, part.shape, generator=generator)
    return (part * (quarters * signs / 4).to(part.device, part.dtype)).sum()
