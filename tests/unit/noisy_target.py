"""A model that adds noise to its inputs, as a target for workers and commands."""

from __future__ import annotations

import torch
from torch import nn


class AddNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the model and its inputs."""
    return nn.Sequential(AddNoise()), (torch.linspace(-1, 1, 96).reshape(8, 12),)
