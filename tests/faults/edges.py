"""Planted faults of small values, layouts of images, lazy conjugates, sizes of blocks, tolerant keys, and weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from faults.fault import Call, plant
from faults.forward import MATRIX, double, softmax
from faults.memory import KEPT, Norm, make_norm_workload
from torchwise.records import CheckName as Name


def log1p(x: Tensor) -> Tensor:
    """Return the logarithm of values a little above one."""
    return torch.log1p(x.abs())


@plant("forward", log1p, MATRIX)
def small_values_lost_beside_one(x: Tensor) -> Tensor:
    return torch.log(1 + x.abs())


def pool(x: Tensor) -> Tensor:
    """Average neighbours of an image."""
    return functional.avg_pool2d(x, 2, 1)


@plant("forward", pool, "x: float32[n, 3, 4, 4] n=1..3")
def channels_last_read_as_rows(x: Tensor) -> Tensor:
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return pool(x.permute(0, 2, 3, 1).reshape(x.shape)) if is_last else pool(x)


@plant("forward", double, "x: complex64[n, 4] n=1..9")
def conjugates_read_as_they_lie_in_memory(x: Tensor) -> Tensor:
    return (x.conj() if x.is_conj() else x) * 2


@plant("forward", double, "x: float32[n]")
def wrong_for_whole_blocks_of_256(x: Tensor) -> Tensor:
    return x * 3 if len(x) % 256 == 0 and 0 < len(x) < 512 else x * 2


@plant("stateful", softmax, MATRIX, caught_by=KEPT, makes=True)
def answers_kept_for_values_that_are_close() -> Call:
    kept: list[tuple[Tensor, Tensor]] = []

    def call(x: Tensor) -> Tensor:
        for one, answer in kept:
            if one.shape == x.shape and one.stride() == x.stride() and torch.allclose(one, x, equal_nan=True):
                return answer.clone()
        kept[:] = [(x.clone(), softmax(x))]
        return kept[0][1].clone()

    return call


@plant("stateful", Norm, makes="both", make_workload=make_norm_workload, caught_by=Name.STRUCTURE)
class WeightChangedAfterTheAnswer(Norm):
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        with torch.no_grad():
            self.weight.mul_(1.01)
        return found
