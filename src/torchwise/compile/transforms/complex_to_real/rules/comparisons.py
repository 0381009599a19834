"""Questions of yes or no about complex numbers."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.values import Pair, lift

aten = torch.ops.aten


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
