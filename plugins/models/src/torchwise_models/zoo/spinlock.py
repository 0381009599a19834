"""Family `spinlock`: stochastic neural operators, which map fields to fields and are random by design.

They generate data sets: the same input is run many times over, and each answer is one draw. So they stay in training
mode for inference, and the distribution of the answers must hold. Fields are dimensionless, of unit variance. Layers:
InstanceNorm (https://arxiv.org/abs/1607.08022) or GroupNorm (https://arxiv.org/abs/1803.08494), GELU
(https://arxiv.org/abs/1606.08415), Dropout (https://jmlr.org/papers/v15/srivastava14a.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request

LAYERS = 4
FIELDS = 3
"""Channels of the input and of the output."""
DROPOUT = 0.1
GROUPS = 8
"""Groups of channels that GroupNorm normalises together. With as many groups as channels it would be InstanceNorm."""

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of a layer for a number of channels."""


def instance_norm(channels: int) -> nn.Module:
    """Return (x − mean) / √(variance + 1e-5) · weight + bias, with a mean and a variance for each plane."""
    return nn.InstanceNorm2d(channels, affine=True)


def group_norm(channels: int) -> nn.Module:
    """Return the same with mean and variance over `GROUPS` groups of planes."""
    return nn.GroupNorm(GROUPS, channels)


class StochasticBlock(nn.Module):
    """y = x + s · ε with ε ~ N(0, 1) drawn anew for every element and call, and a learned s per channel."""

    def __init__(self, channels: int, scale: float = 0.1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        return x + self.scale[:, None, None] * torch.randn_like(x)


class OperatorLayer(nn.Module):
    """Convolution 3×3, normalisation, GELU, Dropout, noise. Height and width are kept."""

    def __init__(self, channels_in: int, channels: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, kernel_size=3, padding=1)
        self.norm = norm(channels)
        self.dropout = nn.Dropout(DROPOUT)
        self.noise = StochasticBlock(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels_in, height, width) to (batch, channels, height, width)."""
        x = functional.gelu(self.norm(self.conv(x)))
        noisy: torch.Tensor = self.noise(self.dropout(x))
        return noisy


class StochasticOperator(nn.Module):
    """Four such layers, then a 1×1 projection back to the fields."""

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        widths = [FIELDS] + [channels] * LAYERS
        self.layers = nn.ModuleList(OperatorLayer(widths[i], widths[i + 1], norm) for i in range(LAYERS))
        self.projection = nn.Conv2d(channels, FIELDS, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map fields of shape (batch, 3, height, width) to fields of the same shape."""
        for layer in self.layers:
            x = layer(x)
        projected: torch.Tensor = self.projection(x)
        return projected


def build_operator(request: Request, *, batch: int, side: int, channels: int) -> Workload:
    """Build it for square fields of `side`, in training mode: it is meant to be random."""
    return _build(request, instance_norm, batch, side, channels)


def build_operator_groupnorm(request: Request, *, batch: int, side: int, channels: int) -> Workload:
    """Build it with GroupNorm in InstanceNorm's place. `channels` must be a multiple of 8."""
    return _build(request, group_norm, batch, side, channels)


def build_operator_single(request: Request, *, side: int, channels: int) -> Workload:
    """Build it for one field at a time, as when each draw depends on the one before."""
    return _build(request, instance_norm, 1, side, channels)


def build_operator_groupnorm_single(request: Request, *, side: int, channels: int) -> Workload:
    """Build it with GroupNorm for one field at a time. `channels` must be a multiple of 8."""
    return _build(request, group_norm, 1, side, channels)


def _build(request: Request, norm: Norm, batch: int, side: int, channels: int) -> Workload:
    model = request.draws().module(lambda: StochasticOperator(channels, norm)).train()
    examples = functools.partial(_examples, request, batch, side)
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        roofline=_roofline(request.dtype.itemsize, batch * side * side, channels),
        reseed=examples,
    )


def _roofline(itemsize: int, pixels: int, channels: int) -> Roofline:
    """Count the least work: a norm needs whole planes, so each layer is written once and read once again.

    The work per element is 9 · 2 · inputs for the convolution, normalisation 8, GELU 5, dropout 2, noise 2, and 10 for
    a normal draw and a uniform one.
    """
    inputs = FIELDS + (LAYERS - 1) * channels
    convolutions = 18 * inputs * channels + 2 * channels * FIELDS
    parameters = 9 * inputs * channels + LAYERS * 4 * channels + channels * FIELDS + FIELDS
    return Roofline(
        flops=float(pixels * (convolutions + 27 * LAYERS * channels)),
        bytes=float(itemsize * (parameters + pixels * (2 * FIELDS + 2 * LAYERS * channels))),
    )


def _examples(request: Request, batch: int, side: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    return (Example((request.draws(seed + 1).normal(batch, FIELDS, side, side),)),)
