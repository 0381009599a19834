"""Planted faults behind a factory's inputs, of which only an example is known, and behind several large sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from faults.fault import plant
from faults.forward import softmax
from faults.memory import KEPT
from torchwise.workload import Workload

Call = Callable[..., Any]


def embed(ids: Tensor) -> Tensor:
    """Look up token ids."""
    return torch.arange(40.0).view(10, 4)[ids]


def make_ids() -> Workload:
    """Return the reference with whole numbers."""
    return Workload.of((embed, (torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]),)))


def make_floats() -> Workload:
    """Return the reference with fractions."""
    return Workload.of((softmax, (torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),)))


@plant("stateful", embed, caught_by=KEPT, makes=True, make_workload=make_ids)
def constant_answer_to_whole_numbers() -> Call:
    first: dict[Any, Tensor] = {}
    return lambda ids: first.setdefault(ids.shape, embed(ids)).clone()


@plant("stateful", embed, caught_by=KEPT, makes=True, make_workload=make_ids)
def answers_to_whole_numbers_kept_by_pointer() -> Call:
    kept: dict[Any, Tensor] = {}
    return lambda ids: kept.setdefault((ids.data_ptr(), ids.shape), embed(ids)).clone()


@plant("forward", lambda x: x - x.mean(), caught_by=KEPT, makes=True, make_workload=make_floats)
def mean_kept_by_shape() -> Call:
    kept: dict[Any, Tensor] = {}
    return lambda x: x - kept.setdefault(x.shape, x.mean())


@plant("forward", softmax, "x: float32[n, m] n=0..64 m=1..64")
def wrong_if_both_sizes_are_large(x: Tensor) -> Tensor:
    return softmax(x) * (1.01 if min(x.shape) > 20 else 1)


@plant("forward", softmax, "x: float32[n, 64] n=1..3500")
def wrong_above_a_thousand_rows(x: Tensor) -> Tensor:
    return softmax(x) * (1.01 if len(x) > 1000 else 1)
