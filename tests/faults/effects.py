"""Planted faults of calls that do more than to answer: to inputs, to gradients, and to modes of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faults.fault import Call, plant
from faults.forward import MATRIX, double
from faults.memory import KEPT
from torchwise.records import CheckName as Name

NOISE = "x: float32[20, 40] in 0.5..1.5"


@plant("stateful", double, MATRIX, caught_by=KEPT, makes=True)
def answers_kept_by_object_and_version() -> Call:
    kept: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        key = id(x), x._version, x.shape
        if key not in kept:
            kept[key] = x * 2
        return kept[key].clone()

    return call


@plant("aliasing", double, MATRIX, caught_by=Name.SURROUNDINGS, makes=True)
def inputs_of_the_earlier_call_used_as_scratch() -> Call:
    last: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if last and last[0].data_ptr() != x.data_ptr():
            last[0].zero_()
        last[:] = [x]
        return x * 2

    return call


@plant("aliasing", double, MATRIX, caught_by=Name.SURROUNDINGS)
def input_made_to_require_gradients(x: Tensor) -> Tensor:
    found = x * 2
    x.requires_grad_()
    return found


@plant("backward", double, MATRIX, caught_by=Name.SURROUNDINGS, training=True)
def gradient_written_into_the_input(x: Tensor) -> Tensor:
    x.grad = torch.ones_like(x)
    return x * 2


class _WritingBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 if 0 in gradient.stride() else gradient.mul_(2)


@plant("backward", double, MATRIX, caught_by=Name.SURROUNDINGS, training=True)
def incoming_gradient_overwritten(x: Tensor) -> Tensor:
    return _WritingBackward.apply(x)


class _AllOrNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return (gradient * y, gradient * x) if all(ctx.needs_input_grad) else (gradient, gradient)


@plant("backward", torch.mul, MATRIX, "y: float32[n, m]", training=True)
def gradient_wrong_where_one_input_needs_none(x: Tensor, y: Tensor) -> Tensor:
    return _AllOrNothing.apply(x, y)


@plant("backward", double, MATRIX, training=True)
def answer_wrong_without_gradients(x: Tensor) -> Tensor:
    return x * 2 if torch.is_grad_enabled() else x * 3


@plant("process", double, MATRIX, caught_by=Name.STRUCTURE)
def answer_of_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * 2


@plant("process", double, MATRIX, caught_by=Name.SURROUNDINGS)
def gradients_turned_off_for_all(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x * 2


@plant("process", double, MATRIX, caught_by=Name.SURROUNDINGS)
def filling_of_memory_turned_off(x: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(False)
    return x * 2


@plant("stochastic", lambda x: functional.dropout(x, 0.25), NOISE, caught_by=Name.SURROUNDINGS)
def setting_changed_beside_noise(x: Tensor) -> Tensor:
    torch.backends.cudnn.benchmark = True
    return functional.dropout(x, 0.25)


class Class(Tensor):
    """A class of its own."""


@plant("stochastic", lambda x: functional.dropout(x, 0.25), NOISE, caught_by=Name.STRUCTURE)
def class_changed_beside_noise(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.25).as_subclass(Class)
