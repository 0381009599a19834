"""Models whose captured graph is hard to write down as a program of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from torchwise import Example, Workload

X = torch.linspace(-1.0, 1.0, 24).view(4, 6)


class Model(torch.nn.Module):
    def __init__(self, does: Callable[[torch.nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.does = does
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self.layer, x)


def _make_workload(does: Callable[[torch.nn.Module, torch.Tensor], Any], *more: torch.Tensor) -> Workload:
    torch.manual_seed(0)
    return Workload(Model(does).eval(), tuple(Example((x,)) for x in (X, *more)))


def arrays() -> Workload:
    """NumPy's functions, a method and an operator of it."""
    return _make_workload(lambda _, x: (np.cumsum(x.numpy(), axis=0) * 2.0 + np.sin(x.numpy())).T.sum(axis=1))


def use_checkpoint() -> Workload:
    return _make_workload(lambda layer, x: checkpoint(lambda t: layer(t).relu(), x, use_reentrant=False))


def nest_conditions() -> Workload:
    """A graph within a graph within a graph."""

    def inner(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.max() > 0.5, lambda u: u * 2, lambda u: u * 3, (t,))

    return _make_workload(lambda _, x: torch.cond(x.sum() > 0, inner, lambda t: t - 1, (x,)))


def autocast() -> Workload:
    def does(layer: torch.nn.Module, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    return _make_workload(does)


def odd_constants() -> Workload:
    """Values that Python's `repr` does not write as code."""
    return _make_workload(lambda _, x: torch.where(x > 0, x, float("-inf")).to(torch.float64).nan_to_num(float("nan")))


def several_sizes() -> Workload:
    return _make_workload(lambda layer, x: layer(x), X[:3], X[:2])
