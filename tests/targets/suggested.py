"""Lines that break the graph, with what is suggested for them: some of it fits, and some would raise."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class Lines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.log = logging.getLogger(__name__)
        self.done = False


class Reads(Lines):
    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.item()  # fits: scale = self.scale
        return x * scale


class ReadsACount(Lines):
    def forward(self, x: Tensor) -> Tensor:
        rounds = int(self.scale)  # fits not: a tensor is no number of rounds
        for _ in range(rounds):
            x = x + 1.0
        return x


class ReadsToPrint(Lines):
    def forward(self, x: Tensor) -> Tensor:
        print(f"{x.sum().item():.3f}")  # fits not: it breaks all the same
        return x.sin()


class Chooses(Lines):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin() if x.sum() > 0 else x.cos()  # fits: y = torch.where(x.sum() > 0, x.sin(), x.cos())
        return y * 2.0


class ChoosesNothing(Lines):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin() if x.sum() > 0 else None  # fits not: None is no tensor
        return x if y is None else y


class ChoosesText(Lines):
    def forward(self, x: Tensor) -> Tensor:
        how = "up" if x.sum() > 0 else "down"  # fits not
        return x.sin() if how == "up" else x.cos()


class AsksNot(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if not x.any():  # asks: torch.logical_not(x.any())
            return x.cos()
        return x.sin()


class AsksTwice(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0 and 0 < x.max() < 9:  # asks: torch.logical_and(
            return x.cos()
        return x.sin()


class AsksANumber(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:  # asks: x.sum() > 0
            return x.cos()
        return x.sin()


class Compares(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if torch.allclose(x, x.abs()):  # asks: torch.isclose(x, x.abs()).all()
            return x.cos()
        return x.sin()


class AsksAHelper(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if is_large(x):  # asks nothing: the helper answers with a Python bool
            return x.cos()
        return x.sin()


def is_large(x: Tensor) -> bool:
    return bool(x.sum() > 100)  # fits not: nobody's method


class AsksAmong(Lines):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() in (1.0, 2.0):  # asks nothing
            return x.cos()
        return x.sin()


class Logs(Lines):
    def forward(self, x: Tensor) -> Tensor:
        logger.info("once more")
        return x.sin()


class LogsByItself(Lines):
    def forward(self, x: Tensor) -> Tensor:
        self.log.info("once more")
        return x.sin()


X: Any = torch.tensor([1.0, 2.0, 3.0])
