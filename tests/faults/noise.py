"""Planted faults of random numbers: wrong distributions, and noise that is no noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faults.fault import plant
from torchwise.plan.requirements import Property
from torchwise.records import CheckName as Name

ROWS = "x: float32[n, 40] n=20..20 in 0.5..1.5"
DISTRIBUTION = (Name.DISTRIBUTION, Name.INDEPENDENCE)
KEPT = 0.75


def drop(x: Tensor) -> Tensor:
    """Drop a quarter."""
    return functional.dropout(x, 1 - KEPT)


def shake(x: Tensor) -> Tensor:
    """Add noise."""
    return x + 0.1 * torch.randn_like(x)


@plant("stochastic", drop, ROWS, caught_by=DISTRIBUTION)
def kept_values_not_scaled(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) < KEPT)


@plant("stochastic", drop, ROWS, caught_by=DISTRIBUTION)
def too_many_dropped(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) < 0.7) / 0.7


@plant("stochastic", drop, ROWS, caught_by=DISTRIBUTION)
def whole_rows_dropped(x: Tensor) -> Tensor:
    return x * (torch.rand(len(x), 1) < KEPT) / KEPT


@plant("stochastic", drop, ROWS, caught_by=DISTRIBUTION)
def nothing_dropped(x: Tensor) -> Tensor:
    return x.clone()


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION)
def uniform_for_normal_noise(x: Tensor) -> Tensor:
    return x + 0.1 * 12**0.5 * (torch.rand_like(x) - 0.5)


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION)
def tails_cut_off(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x).clamp(-1.8, 1.8) * 1.07


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION)
def same_noise_in_all_rows(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn(x.shape[-1])


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION)
def same_noise_in_every_call(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5))


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION, makes=True)
def noise_of_the_earlier_call() -> Callable[..., Any]:
    kept: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if not kept:
            kept.extend([torch.randn_like(x)] * 2)
        return x + 0.1 * kept.pop()

    return call


@plant("stochastic", shake, ROWS, caught_by=DISTRIBUTION)
def neighbours_correlated(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return x + 0.1 * (noise + noise.roll(1, -1)) / 2**0.5


@plant("stochastic", drop, "x: float32[n, 40] n=1..60 in 0.5..1.5", caught_by=DISTRIBUTION)
def nothing_dropped_at_large_sizes(x: Tensor) -> Tensor:
    return x.clone() if len(x) > 20 else drop(x)


@plant("stochastic", drop, ROWS, caught_by=(*DISTRIBUTION, Name.VALUES))
def columns_taken_for_rows(x: Tensor) -> Tensor:
    return drop(x if x.is_contiguous() else x * 1.2)


@plant("stochastic", drop, ROWS, caught_by=(Name.VALUES, Name.STRUCTURE))
def input_overwritten_by_noise(x: Tensor) -> Tensor:
    found = drop(x)
    x.zero_()
    return found


class _Unscaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.rand_like(x) < KEPT
        ctx.save_for_backward(mask)
        return x * mask / KEPT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0]


@plant("stochastic", drop, ROWS, caught_by=DISTRIBUTION, training=True)
def gradient_of_the_noise_not_scaled(x: Tensor) -> Tensor:
    return _Unscaled.apply(x)


@plant("stochastic", drop, ROWS, caught_by=Name.DETERMINISTIC, properties=frozenset({Property.DETERMINISTIC}))
def noise_of_another_generator(x: Tensor) -> Tensor:
    return x * torch.bernoulli(torch.full_like(x, KEPT), generator=OWN) / KEPT


OWN = torch.Generator().manual_seed(9)
