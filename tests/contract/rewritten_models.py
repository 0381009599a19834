"""A small model for each rewrite on a CPU, which has a place for it, and one for backends. Each has its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Calls(nn.Module):
    """Calls a function, with a layer as its first argument."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(self.layer, *args)


class Selects(nn.Module):
    """Sums the rows that are positive: selected, or masked in the form with static shapes."""

    def __init__(self, inner: nn.Linear, *, selects: bool = True) -> None:
        super().__init__()
        self.inner, self.selects = inner, selects

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[:, 0] > 0
        if self.selects:
            return self.inner(x[kept]).sum(0)
        return (self.inner(x) * kept[:, None]).sum(0)

    def static_form(self) -> nn.Module:
        return Selects(self.inner, selects=False).train(self.training)


def _make(model: nn.Module, *sizes: int) -> Made:
    return model.eval(), (torch.randn(*sizes, generator=torch.Generator().manual_seed(1)),)


def linear() -> Made:
    torch.manual_seed(0)
    return _make(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), 16, 64)


def few_rows() -> Made:
    model, (x,) = linear()
    return model, (x[:1],)


def lstm() -> Made:
    return _make(Calls(lambda layer, x: layer(x)[0] + 1, nn.LSTM(4, 4)), 3, 2, 4)


def convolution() -> Made:
    return _make(nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.InstanceNorm2d(5, affine=True)), 2, 3, 16, 16)


def plain_convolution() -> Made:
    return _make(nn.Conv2d(3, 5, 3), 2, 3, 8, 8)


def shares() -> Made:
    return _make(Calls(lambda layer, x: layer(x).softmax(-1).log(), nn.Linear(8, 8)), 4, 8)


def convolved() -> Made:
    def convolve(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        size = 11  # of 8 + 4 - 1
        return torch.fft.irfft(torch.fft.rfft(layer(x), size) * torch.fft.rfft(x[:, :4], size), size)

    return _make(Calls(convolve, nn.Linear(8, 8)), 3, 8)


def distances() -> Made:
    def measure(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        points = layer(x)
        return (points[:, None] - x[None]).square().sum(-1)

    return _make(Calls(measure, nn.Linear(8, 8)), 6, 8)


def samples() -> Made:
    return _make(Calls(lambda layer, x: torch.stack([layer(row).tanh() for row in x]), nn.Linear(8, 8)), 6, 8)


def gelu() -> Made:
    return _make(nn.Sequential(nn.Linear(8, 8), nn.GELU()), 4, 8)


def dropout() -> Made:
    model, inputs = _make(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), 4, 8)
    return model.train(), inputs


def attention() -> Made:
    def attend(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = layer(x).reshape(1, 1, -1, 12).chunk(3, dim=-1)
        return (q @ k.mT).softmax(-1) @ v

    return _make(Calls(attend, nn.Linear(4, 12)), 16, 4)


def shared_keys() -> Made:
    def attend(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = layer(x).reshape(1, 1, -1, 12).chunk(3, dim=-1)
        k, v = (one.repeat_interleave(2, dim=1) for one in (k, v))
        return nn.functional.scaled_dot_product_attention(q.expand(1, 2, -1, 4), k, v, is_causal=True)

    return _make(Calls(attend, nn.Linear(4, 12)), 16, 4)


def shared_inputs() -> Made:
    layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(4, 6, bias=False)])
    return _make(Calls(lambda layer, x: layer[0](x).sigmoid() * layer[1](x), layers), 3, 4)


def transposed() -> Made:
    return _make(Calls(lambda layer, x: layer(x).mT + 1, nn.Linear(4, 6)), 2, 3, 4)


def complex_numbers() -> Made:
    return _make(Calls(lambda layer, x: torch.view_as_real(torch.polar(x, layer(x)) * 1j), nn.Linear(4, 4)), 3, 4)


def points() -> Made:
    return _make(Calls(lambda layer, x: (x[:, None] - layer(x)).square().sum(-1), nn.Linear(3, 3)), 40, 3)


def selected() -> Made:
    return _make(Selects(nn.Linear(4, 3)), 5, 4)
