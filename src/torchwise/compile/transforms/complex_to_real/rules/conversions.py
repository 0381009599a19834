"""Conversions of real numbers into complex ones, and of complex ones into real ones."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.rules.comparisons import nonzero
from torchwise.compile.transforms.complex_to_real.values import REAL, Pair, lift

aten, prims = torch.ops.aten, torch.ops.prims


@rule(aten.complex)
def complex_of(_want: ExpectedResult, re: torch.Tensor, im: torch.Tensor) -> Pair:
    """Re + i im."""
    return Pair(re, im)


@rule(aten.polar)
def polar(_want: ExpectedResult, size: torch.Tensor, angle: torch.Tensor) -> Pair:
    """Size · (cos angle + i sin angle)."""
    return Pair(size * angle.cos(), size * angle.sin())


@rule(aten.real, computes=False)
def real(_want: ExpectedResult, z: Pair) -> Any:
    """The real part."""
    return z.tensors()[0]


@rule(aten.imag, computes=False)
def imag(_want: ExpectedResult, z: Pair) -> Any:
    """The imaginary part."""
    return z.tensors()[1]


@rule(aten.view_as_complex, aten.view_as_complex_copy, computes=False)
def view_as_complex(_want: ExpectedResult, whole: torch.Tensor) -> Pair:
    """(..., 2) read as complex numbers."""
    return Pair.from_interleaved(whole)


@rule(aten._to_copy, aten.to, prims.convert_element_type, computes=False)
def convert(want: ExpectedResult, z: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Convert to another dtype or device. A real dtype takes the real part, and bool takes z ≠ 0."""
    if want.dtype is torch.bool:
        return nonzero(z).to(want.device)
    parts = lift(z)
    moved = [p.to(want.device, want.real) if isinstance(p, torch.Tensor) else p for p in (parts.re, parts.im)]
    return Pair(moved[0], moved[1]) if want.dtype in REAL else Pair(moved[0], moved[1]).tensors()[0]


@rule(aten.full, aten.full_like, aten.new_full, computes=False)
def full(_want: ExpectedResult, _like: Any, *args: Any, **_kwargs: Any) -> Pair:
    """One number everywhere."""
    return lift(args[-1])


@rule(aten.scalar_tensor, computes=False)
def scalar_tensor(_want: ExpectedResult, value: Any, **_kwargs: Any) -> Pair:
    """One number."""
    return lift(value)


@rule(aten.ones, aten.ones_like, aten.new_ones, computes=False)
def ones(_want: ExpectedResult, *_args: Any, **_kwargs: Any) -> Pair:
    """1 everywhere."""
    return Pair(1.0, 0.0)


@rule(aten.zeros, aten.zeros_like, aten.new_zeros, aten.empty, aten.empty_like, aten.new_empty, computes=False)
@rule(aten.empty_strided, aten.new_empty_strided, prims.empty_strided, aten.empty_permuted, computes=False)
def zeros(_want: ExpectedResult, *_args: Any, **_kwargs: Any) -> Pair:
    """0 everywhere, also for memory whose contents are undefined."""
    return Pair(0.0, 0.0)
