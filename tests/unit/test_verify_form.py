"""Faults other than wrong numbers that a verdict must not pass.

They are other containers, shared memory, and garbage in whole numbers.
"""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from torchwise.records import Outcome
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("eager", "candidate"),
    [
        (lambda x: (x * 2, x + 1), lambda x: [x * 2, x + 1]),
        (lambda x: (x * 2, {}), lambda x: (x * 2,)),
        (lambda x: collections.OrderedDict(a=x * 2), lambda x: {"a": x * 2}),
        (lambda x: (lambda y: (y, y.clone()))(x * 2), lambda x: (lambda y: (y, y))(x * 2)),
        (lambda x: (x * 1e7).long(), lambda x: torch.zeros_like(x, dtype=torch.long)),  # a third is off by one in eager
    ],
    ids=["list", "empty", "dict", "shared", "whole numbers"],
)
def test_another_form_or_garbage_never_passes(eager: Any, candidate: Any) -> None:
    verdict = verify(Subject(Workload(eager, (Example((X,)),)), candidate, eager))
    assert verdict.outcome is Outcome.FAIL


def test_an_infinite_number_is_equal_to_itself() -> None:
    def call(x: torch.Tensor) -> Any:
        return x * 2, float("inf")

    assert verify(Subject(Workload(call, (Example((X,)),)), call, call)).outcome is Outcome.PASS


class Scale(torch.autograd.Function):
    """Multiplies by a weight, whose gradient it computes in other strides than the weight's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (x,) = ctx.saved_tensors
        return None, (gradient * x).t().contiguous().t()


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_gradients_are_compared_in_the_strides_that_a_parameter_gets_them_in() -> None:
    model = Scaled()
    workload = Workload(model, (Example((X,)),))
    verdict = verify(Subject(workload, lambda x: Scale.apply(x, model.weight), model, training=True))
    assert verdict.outcome is Outcome.PASS, verdict
