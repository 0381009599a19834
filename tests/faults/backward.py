"""Planted faults of gradients: the answers are right, and the gradients are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from faults.fault import plant
from faults.forward import MATRIX, PAIR, softmax
from torchwise.records import CheckName as Name

WRONG = (Name.VALUES, Name.STRUCTURE, Name.ANSWER)


def combine(x: Tensor, y: Tensor) -> Tensor:
    """Return the reference of faults with two inputs."""
    return torch.tanh(x) * y


def square(x: Tensor) -> Tensor:
    """Square."""
    return x * x


class _Square(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return cls.factor * x * gradient


@plant("backward", square, MATRIX, training=True)
def gradient_one_percent_too_large(x: Tensor) -> Tensor:
    return type("Wrong", (_Square,), {"factor": 2.02}).apply(x)


@plant("backward", square, MATRIX, training=True)
def gradient_of_the_wrong_sign(x: Tensor) -> Tensor:
    return type("Wrong", (_Square,), {"factor": -2.0}).apply(x)


class _Bf16Backward(_Square):
    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return (2 * x.bfloat16() * gradient.bfloat16()).float()


@plant("backward", square, MATRIX, training=True)
def gradient_in_bf16(x: Tensor) -> Tensor:
    return _Bf16Backward.apply(x)


class _EdgeBackward(_Square):
    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        found = 2 * x * gradient
        if x.shape[-1] % 32 == 1 and x.shape[-1] > 1:
            found[..., -1] = 0
        return found


@plant("backward", square, MATRIX, training=True)
def last_column_of_the_gradient_missing(x: Tensor) -> Tensor:
    return _EdgeBackward.apply(x)


class _SignlessBackward(_Square):
    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient.abs()


@plant("backward", lambda x: x * x - 5, MATRIX, training=True)
def gradient_that_ignores_its_incoming_sign(x: Tensor) -> Tensor:
    return _SignlessBackward.apply(x) - 5


@plant("backward", combine, *PAIR, training=True, caught_by=WRONG)
def second_input_without_gradient(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x) * y.detach()


@plant("backward", combine, *PAIR, training=True)
def gradients_of_the_inputs_exchanged(x: Tensor, y: Tensor) -> Tensor:
    swapped = torch.tanh(y) * x
    return (torch.tanh(x) * y).detach() + swapped - swapped.detach()


@plant("backward", softmax, MATRIX, training=True, caught_by=WRONG)
def no_gradient_at_all(x: Tensor) -> Tensor:
    with torch.no_grad():
        return softmax(x)


@plant("backward", softmax, MATRIX, training=True)
def only_the_diagonal_of_the_jacobian(x: Tensor) -> Tensor:
    found = softmax(x).detach()
    linear = found * (1 - found) * x
    return found + linear - linear.detach()


@plant("backward", lambda x: x.clamp(-0.5, 0.5), MATRIX, training=True)
def gradient_passed_straight_through(x: Tensor) -> Tensor:
    return x + (x.clamp(-0.5, 0.5) - x).detach()


class _LossBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x


@plant("backward", lambda x: x.square().sum(), MATRIX, training=True)
def gradient_of_a_loss_that_ignores_what_comes_in(x: Tensor) -> Tensor:
    return _LossBackward.apply(x)


class _MeanSquareBackward(_Square):
    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * (2 * x * x / max(x.numel(), 1))


@plant("backward", square, MATRIX, training=True)
def gradient_of_the_mean_square_alone(x: Tensor) -> Tensor:
    return _MeanSquareBackward.apply(x)


class _FlatBackward(_Square):
    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        flat = torch.as_strided(gradient, (gradient.untyped_storage().nbytes() // gradient.element_size(),), (1,))
        return 2 * x * (flat.view(x.shape) if flat.numel() == x.numel() else gradient + 1)


@plant("backward", square, "x: float32[n, m] n=2..9 m=2..9", training=True)
def gradient_read_as_if_it_were_dense(x: Tensor) -> Tensor:
    return _FlatBackward.apply(x)
