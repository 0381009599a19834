"""Small training steps, each as a `TrainStep` and as the loop that one would write by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torchwise
from torchwise.workload import Example, Workload, pytree


class Net(torch.nn.Module):
    """A model with a frozen part, batch-norm, dropout, and a head."""

    def __init__(self, dropout: float = 0.0, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.first, self.head = (
            torch.nn.Linear(4, width),
            torch.nn.Linear(width, width),
            torch.nn.Linear(width, 3),
        )
        self.norm, self.dropout = torch.nn.BatchNorm1d(width), torch.nn.Dropout(dropout)
        self.stem.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.norm(torch.tanh(self.first(self.stem(x))))))


class Block(torch.nn.Module):
    """One of several equal blocks, so that there are repeated blocks."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.nn.functional.gelu(self.linear(self.norm(x))))


class Blocks(torch.nn.Module):
    """Three blocks between two layers."""

    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.enter, self.leave = torch.nn.Linear(4, width), torch.nn.Linear(width, 3)
        self.blocks = torch.nn.ModuleList([Block(width, dropout) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def batch(rows: int = 8, seed: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and classes."""
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    return torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def batches(count: int, rows: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the same batches on every call."""
    return [batch(rows, seed) for seed in range(count)]


def a_step(
    model: torch.nn.Module | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, 1e-2),
    scheduler: Callable[[Any], Any] | None = None,
    loss: Any = torch.nn.functional.cross_entropy,
    **rest: Any,
) -> torchwise.TrainStep:
    """Return a step on `Blocks`, unless another model is given."""
    model = model or Blocks()
    made = optimizer([p for p in model.parameters() if p.requires_grad])
    return torchwise.TrainStep(model, loss, made, scheduler=scheduler(made) if scheduler else None, **rest)


def make_step_workload(step: torchwise.TrainStep, seed: int = 0) -> Workload:
    """Return the step as a workload on two batches, with its optimizer's state made."""
    given = [Example(found) for found in batches(2, 16)]
    step(*given[0].clone().args)
    return Workload(step, given)


def collect_step_state(step: Any) -> list[Any]:
    """Return all that a step changes, as leaves."""
    kept = step.state_dict()
    rates = [{k: v for k, v in group.items() if k != "params"} for group in step.optimizer.param_groups]
    return [leaf for _, leaf in pytree.list_named_leaves((kept, rates))]


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether all leaves are equal, bit by bit."""
    return len(a) == len(b) and all(
        (pytree.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y)
        for x, y in zip(a, b, strict=True)
    )
