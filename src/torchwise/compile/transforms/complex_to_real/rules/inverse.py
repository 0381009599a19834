"""The inverse trigonometric and hyperbolic functions (Kahan, *Branch Cuts for Complex Elementary Functions*, 1987)."""

from __future__ import annotations

import math

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.rules.elementary import sqrt
from torchwise.compile.transforms.complex_to_real.values import Pair

aten = torch.ops.aten


@rule(aten.asinh)
def asinh(want: ExpectedResult, z: Pair) -> Pair:
    """With p = √(1 + iz), q = √(1 − iz): asinh(re p im q − re q im p) + i atan2(y, re p re q − im p im q)."""
    x, y = z.tensors()
    p, q = sqrt(want, Pair(1 - y, x)).tensors(), sqrt(want, Pair(1 + y, -x)).tensors()
    return Pair(-(p[0] * q[1] - q[0] * p[1]).asinh(), torch.atan2(y, p[0] * q[0] - p[1] * q[1]))


@rule(aten.acos)
def acos(want: ExpectedResult, z: Pair) -> Pair:
    """With p = √(1 − z), q = √(1 + z): 2 atan2(re p, re q) + i asinh(re q im p − im q re p)."""
    x, y = z.tensors()
    p, q = sqrt(want, Pair(1 - x, -y)).tensors(), sqrt(want, Pair(1 + x, y)).tensors()
    return Pair(2 * torch.atan2(p[0], q[0]), (q[0] * p[1] - q[1] * p[0]).asinh())


@rule(aten.acosh)
def acosh(want: ExpectedResult, z: Pair) -> Pair:
    """With p = √(z − 1), q = √(z + 1): asinh(re p re q + im p im q) + 2i atan2(im p, re q)."""
    x, y = z.tensors()
    p, q = sqrt(want, Pair(x - 1, y)).tensors(), sqrt(want, Pair(x + 1, y)).tensors()
    return Pair((p[0] * q[0] + p[1] * q[1]).asinh(), 2 * torch.atan2(p[1], q[0]))


@rule(aten.atanh)
def atanh(_want: ExpectedResult, z: Pair) -> Pair:
    """log1p(4|x| / ((1 − |x|)² + y²)) / 4 with the sign of x, + i atan2(2y, (1 − |x|)(1 + |x|) − y²) / 2.

    Near ±1, where the square could vanish, the real part is ln(|1 + z| / |1 − z|) / 2. If squares would overflow, the
    whole result is x / |z|² ± iπ/2, from quotients.
    """
    x, y = z.tensors()
    far = torch.maximum(x.abs(), y.abs()) > math.sqrt(torch.finfo(x.dtype).max) / 4
    a, b = torch.where(far, 0.0, x.abs()), torch.where(far, 0.0, y.abs())
    gap = torch.hypot(1 - a, b)
    close = gap < 0.25
    ratio = 4 * a / torch.where(close, 1.0, gap * gap)
    near = torch.where(close, 0.5 * (torch.hypot(1 + a, b).log() - gap.log()), 0.25 * torch.log1p(ratio))
    size = torch.where(far, torch.hypot(0.5 * x, 0.5 * y), 1.0)
    real = torch.where(far, 0.25 * (x.abs() / size) / size, near)
    angle = torch.where(far, math.pi / 2, 0.5 * torch.atan2(2 * b, (1 - a) * (1 + a) - b * b))
    return Pair(torch.copysign(real, x), torch.copysign(angle, y))


@rule(aten.asin)
def asin(want: ExpectedResult, z: Pair) -> Pair:
    """−i asinh(iz)."""
    return -(asinh(want, z.times_i()).times_i())


@rule(aten.atan)
def atan(want: ExpectedResult, z: Pair) -> Pair:
    """−i atanh(iz)."""
    return -(atanh(want, z.times_i()).times_i())
