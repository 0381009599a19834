"""Sums, products, quotients, and the conjugate, angle and modulus of a complex number."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.values import Pair, Part, lift, plus, times

aten = torch.ops.aten


@rule(aten.add)
def add(want: ExpectedResult, a: Any, b: Any, *, alpha: Any = 1) -> Pair:
    """a + alpha · b."""
    return lift(a, want.real) + lift(b, want.real) * lift(alpha)


@rule(aten.sub)
def sub(want: ExpectedResult, a: Any, b: Any, *, alpha: Any = 1) -> Pair:
    """a − alpha · b."""
    return lift(a, want.real) - lift(b, want.real) * lift(alpha)


@rule(aten.rsub)
def rsub(want: ExpectedResult, a: Any, b: Any, alpha: Any = 1) -> Pair:
    """b − alpha · a."""
    return sub(want, b, a, alpha=alpha)


@rule(aten.mul)
def mul(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """a · b."""
    return lift(a, want.real) * lift(b, want.real)


@rule(aten.addcmul)
def addcmul(want: ExpectedResult, a: Any, b: Any, c: Any, *, value: Any = 1) -> Pair:
    """a + value · b · c."""
    return lift(a, want.real) + lift(value) * (lift(b, want.real) * lift(c, want.real))


@rule(aten.addcdiv)
def addcdiv(want: ExpectedResult, a: Any, b: Any, c: Any, *, value: Any = 1) -> Pair:
    """a + value · b / c."""
    return lift(a, want.real) + quotient(want, lift(value) * lift(b, want.real), lift(c, want.real))


@rule(aten.div, aten.true_divide)
def div(want: ExpectedResult, a: Any, b: Any, *, rounding_mode: None = None) -> Pair:  # noqa: ARG001 (None where complex)
    """a / b."""
    return quotient(want, lift(a, want.real), lift(b, want.real))


@rule(aten.reciprocal)
def reciprocal(want: ExpectedResult, z: Any) -> Pair:
    """1 / z."""
    return quotient(want, Pair(1.0, 0.0), lift(z, want.real))


def quotient(want: ExpectedResult, a: Pair, b: Pair) -> Pair:
    """a / b by Smith's method (Communications of the ACM 5, 435, 1962), as ATen and NumPy divide.

    With b = c + i d and |c| ≥ |d|: r = d / c, s = c + d r, a / b = ((re a + im a · r) + i (im a − re a · r)) / s.
    Otherwise the roles of c and d are exchanged. No square is formed, so nothing overflows that is finite in eager. A
    division by exact zero gives inf and nan by parts, as eager's scalar code does. If b is real, both parts are
    multiplied by 1 / b, which is infinite only for a subnormal b.
    """
    if not isinstance(b.im, torch.Tensor) and b.im == 0.0:
        if all(isinstance(part, torch.Tensor) for part in (a.re, a.im, b.re)):
            inverse = _divide(1.0, b.re)  # one division for both: it is the slowest of the arithmetic on a GPU
            return Pair(times(a.re, inverse), times(a.im, inverse))
        return Pair(_divide(a.re, b.re), _divide(a.im, b.re))
    b = Pair(*(p if isinstance(p, torch.Tensor) else want.full(p) for p in (b.re, b.im)))
    c, d = b.tensors()
    swapped = c.abs() < d.abs()
    large, small = torch.where(swapped, d, c), torch.where(swapped, c, d)
    ratio = torch.where(large == 0, 0.0, small / large)
    scale = large + small * ratio
    first, second = torch.where(swapped, ratio, 1.0), torch.where(swapped, 1.0, ratio)  # c / large, d / large
    real = plus(times(a.re, first), times(a.im, second))
    imag = plus(times(a.im, first), times(times(-1.0, a.re), second))
    return Pair(_divide(real, scale), _divide(imag, scale))


def _divide(a: Part, b: Part) -> Part:
    if not isinstance(a, torch.Tensor) and a == 0.0:
        return 0.0
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a / b
    return a / b if b else float("nan")


@rule(aten.neg)
def neg(_want: ExpectedResult, z: Any) -> Pair:
    """−z."""
    return -lift(z)


@rule(aten._conj, aten._conj_physical, aten.conj, aten.conj_physical)
def conj(_want: ExpectedResult, z: Any) -> Pair:
    """The complex conjugate, computed, without PyTorch's conjugate bit."""
    return lift(z).conj()


@rule(aten.angle)
def angle(_want: ExpectedResult, z: Pair) -> torch.Tensor:
    """atan2(im, re), from −π to π."""
    re, im = z.tensors()
    return torch.atan2(im, re)


@rule(aten.abs)
def modulus(_want: ExpectedResult, z: Pair) -> torch.Tensor:
    """|z| = hypot(re, im), which squares nothing that could overflow."""
    if not isinstance(z.im, torch.Tensor) and isinstance(z.re, torch.Tensor):
        return z.re.abs()
    if not isinstance(z.re, torch.Tensor) and isinstance(z.im, torch.Tensor):
        return z.im.abs()
    return torch.hypot(*z.tensors())


def modulus_squared(z: Pair) -> torch.Tensor:
    """|z|² = re² + im²: for squares of the modulus, which overflow where this does."""
    squares = [part * part for part in (z.re, z.im) if isinstance(part, torch.Tensor)]
    return squares[0] if len(squares) == 1 else squares[0] + squares[1]


@rule(aten.sgn, aten.sign)
def sgn(want: ExpectedResult, z: Pair) -> Pair:
    """z / |z|, and 0 for z = 0."""
    size = modulus(want, z)
    size = torch.where(size == 0, 1.0, size)
    return Pair(_divide(z.re, size), _divide(z.im, size))
