"""Small models for the suites that compile or serve one. A model's weights are the same each time it is made."""

from __future__ import annotations

from typing import Any

import torch

MAX_ROWS = 8
"""Number of rows above which `Net` raises an error of its own."""


class Net(torch.nn.Module):
    """A layer with keyword arguments, nested outputs, and an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        """Return nested outputs.

        Raises:
            ValueError: there are more than `MAX_ROWS` rows.
        """
        if x.shape[0] > MAX_ROWS:
            raise ValueError("too many rows for this model")
        hidden = torch.tanh(self.inner(x))
        return {"first": hidden * scale, "others": [hidden.sum(-1), (hidden + 1,)]}


def make_net(device: str = "cpu") -> Net:
    """Return a new `Net` in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval().to(device)


def add_and_scale(x: torch.Tensor, y: torch.Tensor, *, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute two outputs from two inputs, as a function without weights."""
    return (x + y) * scale, torch.relu(x - y)


def add_to(x: torch.Tensor) -> torch.Tensor:
    """Write to the input, and return a new tensor."""
    x.add_(1)
    return x * 2


def make_rows(rows: int, device: str = "cpu", seed: int = 1) -> torch.Tensor:
    """Return inputs for either of them."""
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def change_weights(model: torch.nn.Module) -> None:
    """Change every parameter in place, as an optimizer does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5).add_(0.25)
