"""Exponentials, logarithms and roots.

They follow eager within rounding if the result is finite. If e^x overflows, or an operand is infinite, a part may be
nan here when eager has inf, or inf when eager has nan.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import quotient
from torchwise.compile.transforms.complex_to_real.values import Pair, lift

aten = torch.ops.aten


@rule(aten.exp)
def exp(_want: ExpectedResult, z: Pair) -> Pair:
    """e^x (cos y + i sin y). A number on the imaginary axis needs no e^x, and one on the real axis no cosine."""
    if not isinstance(z.im, torch.Tensor) and isinstance(z.re, torch.Tensor):
        return Pair(z.re.exp(), 0.0)
    if not isinstance(z.re, torch.Tensor) and isinstance(z.im, torch.Tensor):
        return Pair(z.im.cos(), z.im.sin())
    x, y = z.tensors()
    size = x.exp()
    return Pair(size * y.cos(), size * y.sin())


@rule(aten.exp2)
def exp2(want: ExpectedResult, z: Pair) -> Pair:
    """2^z = e^(z ln 2)."""
    return exp(want, z.scale_by(math.log(2)))


@rule(aten.expm1)
def expm1(_want: ExpectedResult, z: Pair) -> Pair:
    """e^z − 1 = (expm1(x) cos y − 2 sin²(y/2)) + i e^x sin y, exact to rounding near 0."""
    x, y = z.tensors()
    half = (0.5 * y).sin()
    return Pair(x.expm1() * y.cos() - 2 * half * half, x.exp() * y.sin())


@rule(aten.log)
def log(_want: ExpectedResult, z: Pair) -> Pair:
    """ln|z| + i arg z. Near |z| = 1, ln|z| = log1p((m − 1)(m + 1) + n²) / 2, with larger part m and smaller part n."""
    x, y = z.tensors()
    size = torch.hypot(x, y)
    m, n = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    near = 0.5 * torch.log1p((m - 1) * (m + 1) + n * n)
    return Pair(torch.where((size > 0.7) & (size < 1.5), near, size.log()), torch.atan2(y, x))


@rule(aten.log2)
def log2(want: ExpectedResult, z: Pair) -> Pair:
    """ln z / ln 2."""
    return log(want, z).scale_by(1 / math.log(2))


@rule(aten.log10)
def log10(want: ExpectedResult, z: Pair) -> Pair:
    """ln z / ln 10."""
    return log(want, z).scale_by(1 / math.log(10))


@rule(aten.log1p)
def log1p(want: ExpectedResult, z: Pair) -> Pair:
    """ln(1 + z). Its real part near 0 is log1p(x (x + 2) + y²) / 2."""
    x, y = z.tensors()
    far = log(want, Pair(1 + x, y))
    near = 0.5 * torch.log1p(x * (x + 2) + y * y)
    real, angle = far.tensors()
    return Pair(torch.where(torch.maximum(x.abs(), y.abs()) < 0.25, near, real), angle)


@rule(aten.sqrt)
def sqrt(_want: ExpectedResult, z: Pair) -> Pair:
    """The root in the right half plane: t = √((|x| + |z|) / 2), and t + i y / 2t, or |y| / 2t ± i t for x < 0.

    (Kahan, *Branch Cuts for Complex Elementary Functions*, 1987.) Parts so large that the sum could overflow are
    divided by 16 first.
    """
    x, y = z.tensors()
    large = torch.maximum(x.abs(), y.abs()) > torch.finfo(x.dtype).max / 8
    down = torch.where(large, 1 / 16, 1.0).to(x.dtype)
    up = torch.where(large, 4.0, 1.0).to(x.dtype)
    t = (0.5 * ((x * down).abs() + torch.hypot(x * down, y * down))).sqrt() * up
    other = torch.where(t == 0, 0.0, 0.5 * y / t)
    left = x < 0
    return Pair(torch.where(left, other.abs(), t), torch.where(left, torch.copysign(t, y), other))


@rule(aten.rsqrt)
def rsqrt(want: ExpectedResult, z: Pair) -> Pair:
    """1 / √z."""
    return quotient(want, Pair(1.0, 0.0), sqrt(want, z))


@rule(aten.sigmoid)
def sigmoid(want: ExpectedResult, z: Any) -> Pair:
    """1 / (1 + e^−z)."""
    return quotient(want, Pair(1.0, 0.0), Pair(1.0, 0.0) + exp(want, -lift(z)))
