"""Powers with whole, real and complex exponents."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import quotient
from torchwise.compile.transforms.complex_to_real.rules.elementary import exp, log, rsqrt, sqrt
from torchwise.compile.transforms.complex_to_real.values import Pair, lift

aten = torch.ops.aten

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
