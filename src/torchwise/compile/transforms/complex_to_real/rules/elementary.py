"""Exponentials, logarithms, roots, powers, and the trigonometric and hyperbolic functions with their inverses.

They follow eager within rounding if the result is finite. If e^x overflows, or an operand is infinite, a part may be
nan here when eager has inf, or inf when eager has nan. The hyperbolic functions are the trigonometric ones turned by i.
The inverses follow Kahan, *Branch Cuts for Complex Elementary Functions*, 1987.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.pairs import ExpectedResult, Pair, lift, rule
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import quotient

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


MULTIPLIED = 16
"""Whole exponents up to this are products. Larger ones go through the logarithm."""


@rule(aten.square)
def square(want: ExpectedResult, z: Any) -> Pair:
    """z · z."""
    return lift(z, want.real) * lift(z, want.real)


@rule(aten.pow)
def power(want: ExpectedResult, base: Any, exponent: Any) -> Pair:
    """base^exponent = e^(exponent · ln base). Small whole exponents and ±½ go by products and roots, as in ATen."""
    z = lift(base, want.real)
    if isinstance(exponent, Pair | torch.Tensor):
        return _general(want, z, lift(exponent, want.real))
    number = complex(exponent)
    if number.imag == 0 and number.real.is_integer() and abs(number.real) <= MULTIPLIED:
        whole = _integer_power(z, abs(int(number.real)))
        return whole if number.real >= 0 else quotient(want, Pair(1.0, 0.0), whole)
    if number in (0.5, -0.5):
        return sqrt(want, z) if number.real > 0 else rsqrt(want, z)
    return _general(want, z, lift(number))


def _integer_power(z: Pair, exponent: int) -> Pair:
    """Multiply by squaring: exponent's binary digits from the lowest."""
    result = Pair(1.0, 0.0)
    while exponent:
        if exponent % 2:
            result = result * z
        exponent //= 2
        z = z * z if exponent else z
    return result


def _general(want: ExpectedResult, base: Pair, exponent: Pair) -> Pair:
    base, exponent = _as_tensors(want, base), _as_tensors(want, exponent)
    x, y = base.tensors()
    u, _ = exponent.tensors()
    at_zero = (x == 0) & (y == 0)
    inside = Pair(torch.where(at_zero, 1.0, x), torch.where(at_zero, 0.0, y))
    re, im = exp(want, log(want, inside) * exponent).tensors()
    # 0^w, as in eager: 0 if Re w > 0, else e^(w · (−inf)), which is inf or nan, 0^0 included.
    zero_re = torch.where(u > 0, 0.0, torch.where(u < 0, math.inf, math.nan))
    zero_im = torch.where(u > 0, 0.0, math.nan)
    return Pair(torch.where(at_zero, zero_re, re), torch.where(at_zero, zero_im, im))


def _as_tensors(want: ExpectedResult, z: Pair) -> Pair:
    return Pair(*(part if isinstance(part, torch.Tensor) else want.full(part) for part in (z.re, z.im)))


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
