"""Sums, products, quotients, the conjugate, angle and modulus, products of matrices, and questions of yes or no.

A matrix times a vector is bound by reading the matrix. Product and sum in one kernel read it once, interleaved as it
lies. A product with a real matrix is two real ones. A product of two complex matrices stays as it is, between composing
and splitting, for no number of real products is quicker. Measured with torch 2.13, complex64, two CPU cores, in ms, the
best of many calls. "compiled" is `((a * b) @ c) * b` as a whole:

    n                        64      128     256     512
    complex product         0.015   0.094   0.645   5.48     largest error at 512: 3.0e-5
    four real products      0.035   0.211   0.706   5.88                           2.7e-5
    three real products     0.078   0.249   0.586   4.55                           4.7e-5
    compiled, complex       0.083   0.194   0.962   9.4
    compiled, four          0.112   0.245   0.980   8.2

Three would gain a sixth at 512 alone, and cost half of the last digit. The real products also need their operands
copied apart, and the complex one takes them as they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.pairs import (
    ExpectedResult,
    NotCoveredError,
    Pair,
    Part,
    lift,
    plus,
    rule,
    times,
)

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


@rule(aten.mm)
def mm(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """A B."""
    return _product(torch.mm, lift(a, want.real), lift(b, want.real))


@rule(aten.bmm)
def bmm(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """A_n B_n."""
    return _product(torch.bmm, lift(a, want.real), lift(b, want.real))


@rule(aten.mv)
def mv(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """A b."""
    return _each(lift(a, want.real) * lift(b, want.real), lambda part: part.sum(-1))


@rule(aten.dot)
def dot(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """Σ a_i b_i."""
    return mv(want, a, b)


@rule(aten.vdot)
def vdot(want: ExpectedResult, a: Any, b: Any) -> Pair:
    """Σ a_i* b_i."""
    return mv(want, lift(a).conj(), b)


@rule(aten.addmm, aten.baddbmm, aten.addmv)
def addmm(want: ExpectedResult, start: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Pair:
    """Beta · start + alpha · A B. If beta is 0, start may hold nan."""
    product = {aten.addmm: mm, aten.baddbmm: bmm, aten.addmv: mv}[want.target.overloadpacket](want, a, b)
    return lift(start, want.real) * lift(beta) + product * lift(alpha)


def _product(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], a: Pair, b: Pair) -> Pair:
    if 1 in (*a.tensors()[0].shape[-2:], b.tensors()[0].shape[-1]):
        terms = _each(a, lambda part: part.unsqueeze(-1)) * _each(b, lambda part: part.unsqueeze(-3))
        return _each(terms, lambda part: part.sum(-2))
    if isinstance(a.im, torch.Tensor) and isinstance(b.im, torch.Tensor):
        raise NotCoveredError("a product of complex matrices")
    if isinstance(a.im, torch.Tensor):
        right = b.tensors()[0]
        return _each(a, lambda part: product(part, right))
    left = a.tensors()[0]
    return _each(b, lambda part: product(left, part))


def _each(z: Pair, function: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """Apply a linear function to the parts. An exact zero stays one."""

    def apply(part: Part) -> Part:
        return function(part) if isinstance(part, torch.Tensor) else part

    return Pair(apply(z.re), apply(z.im))


@rule(aten.eq)
def eq(_want: ExpectedResult, a: Any, b: Any) -> Any:
    """Both parts are equal."""
    a, b = lift(a), lift(b)
    return (a.re == b.re) & (a.im == b.im)


@rule(aten.ne)
def ne(want: ExpectedResult, a: Any, b: Any) -> Any:
    """A part differs."""
    return ~eq(want, a, b)


@rule(aten.isnan)
def isnan(_want: ExpectedResult, z: Pair) -> torch.Tensor:
    """A part is nan."""
    re, im = z.tensors()
    return re.isnan() | im.isnan()


@rule(aten.isinf)
def isinf(_want: ExpectedResult, z: Pair) -> torch.Tensor:
    """A part is infinite."""
    re, im = z.tensors()
    return re.isinf() | im.isinf()


@rule(aten.isfinite)
def isfinite(_want: ExpectedResult, z: Pair) -> torch.Tensor:
    """Both parts are finite."""
    re, im = z.tensors()
    return re.isfinite() & im.isfinite()


def nonzero(z: Any) -> torch.Tensor:
    """Return where z ≠ 0."""
    re, im = lift(z).tensors()
    return (re != 0) | (im != 0)


@rule(aten.any, aten.all, aten.logical_not, aten.logical_and, aten.logical_or, aten.logical_xor)
def logical(want: ExpectedResult, *args: Any, **kwargs: Any) -> Any:
    """Apply the same operator to z ≠ 0 for each complex argument z."""
    return want.target(*(nonzero(arg) if isinstance(arg, Pair) else arg for arg in args), **kwargs)
