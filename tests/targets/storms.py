"""Models that PyTorch compiles anew on call after call, each for another reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

X = torch.linspace(-1.0, 1.0, 12).view(3, 4)
COUNT = 0


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.label = "a"
        self.seen: list[Any] = []
        self.counts = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(x * 1.5) + 1.0


class CountsAndUses(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(x * 1.5) * self.calls


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2.0


class CountsInDict(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts["calls"] += 1
        return torch.relu(x * 1.5) + 1.0


class Relabels(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.label = self.label + "a"
        return torch.relu(x * 1.5) + 1.0


class Remembers(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = torch.relu(x * 1.5) + 1.0
        self.seen.append(answer.mean())
        return answer


class CountsGlobally(Counts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return torch.relu(x * 1.5) + 1.0


class CountsOnItsClass(Counts):
    total = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CountsOnItsClass.total += 1
        return torch.relu(x * 1.5) + 1.0


class Grows(nn.Module):
    """Its buffer grows by a row on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = torch.cat([self.rows, x[:1]])
        return x + self.rows.sum()


class OfMany(nn.Module):
    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([x.sin().sum() for x in xs])


def label_calls(label: Callable[[int], str]) -> list[tuple[Any, ...]]:
    return [(X, label(number)) for number in range(7)]


def one_by_one(length: Callable[[int], int]) -> list[tuple[Any, ...]]:
    """Six tensors, of which one more is longer in each example."""
    return [([torch.ones(length(place) + (place < number)) for place in range(6)],) for number in range(7)]


def takes_label(x: torch.Tensor, label: str) -> torch.Tensor:
    return torch.relu(x) + len(label)
