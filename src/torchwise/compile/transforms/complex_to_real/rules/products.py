"""Products of matrices and vectors.

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

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, NotCoveredError, rule
from torchwise.compile.transforms.complex_to_real.values import Pair, Part, lift

aten = torch.ops.aten


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
