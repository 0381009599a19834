"""Models for real compilations: one that fuses, one that compiling changes, one that is never compiled."""

from __future__ import annotations

import torch


class Fusible(torch.nn.Module):
    """Passes over memory again and again in eager, and once compiled: faster also on a busy machine."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = (x * 0.9).clamp(-2.0, 2.0) + 0.1
        return torch.tanh(x * 1.5 + 0.1) * torch.sigmoid(x) - x.abs() * 0.3


class Miscompiled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1.001 if torch.compiler.is_compiling() else 1.0) + 1.0


class Disabled(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1.0


def fusible() -> object:
    return Fusible(), (torch.randn(1024, 1024),)


def miscompile() -> object:
    return Miscompiled(), (torch.randn(64),)


def disable_compile() -> object:
    return Disabled(), (torch.randn(64),)


class Dropped(torch.nn.Module):
    """Drops out a part of each answer, also in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(32, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.dropout(self.enter(x), 0.3, train=True))


def dropped() -> object:
    return Dropped(), (torch.randn(8, 32),)
