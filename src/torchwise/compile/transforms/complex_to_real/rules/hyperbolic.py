"""Sine, cosine, tangent and their hyperbolic kin, which are the same functions turned by i."""

from __future__ import annotations

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.values import Pair

aten = torch.ops.aten


@rule(aten.sinh)
def sinh(_want: ExpectedResult, z: Pair) -> Pair:
    """sinh x cos y + i cosh x sin y."""
    x, y = z.tensors()
    return Pair(x.sinh() * y.cos(), x.cosh() * y.sin())


@rule(aten.cosh)
def cosh(_want: ExpectedResult, z: Pair) -> Pair:
    """cosh x cos y + i sinh x sin y."""
    x, y = z.tensors()
    return Pair(x.cosh() * y.cos(), x.sinh() * y.sin())


@rule(aten.tanh)
def tanh(_want: ExpectedResult, z: Pair) -> Pair:
    """(tanh x (1 + t²) + i t / cosh² x) / (1 + t² tanh² x), t = tan y, which stays finite at every floating number.

    If cosh x overflows, its inverse is 0, and the quotient is the limit ±1.
    """
    x, y = z.tensors()
    t, a, b = y.tan(), x.tanh(), 1 / x.cosh()
    below = 1 + (t * a) * (t * a)
    return Pair(a * (1 + t * t) / below, t / below * b * b)


@rule(aten.sin)
def sin(want: ExpectedResult, z: Pair) -> Pair:
    """−i sinh(iz)."""
    return -(sinh(want, z.times_i()).times_i())


@rule(aten.cos)
def cos(want: ExpectedResult, z: Pair) -> Pair:
    """cosh(iz)."""
    return cosh(want, z.times_i())


@rule(aten.tan)
def tan(want: ExpectedResult, z: Pair) -> Pair:
    """−i tanh(iz)."""
    return -(tanh(want, z.times_i()).times_i())
