"""Products along a dimension, and norms. Sums are taken by parts, in `shapes`."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, rule
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import modulus
from torchwise.compile.transforms.complex_to_real.values import REAL, Pair, lift

aten = torch.ops.aten


@rule(aten.prod)
def prod(want: ExpectedResult, z: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Pair:  # noqa: ARG001
    """Multiply along a dimension, or over all of them, in halves: log₂ n products of ever shorter tensors."""
    re, im = lift(z, want.real).tensors()
    if dim is None:
        re, im, dim = re.reshape(-1), im.reshape(-1), 0
    if re.dim() == 0:
        return Pair(re, im)
    value, left = Pair(re, im), re.shape[dim]
    if left == 0:
        return Pair(1.0, 0.0)
    while left > 1:
        half = left // 2
        product = _narrow(value, dim, 0, half) * _narrow(value, dim, half, half)
        value = _cat(product, _narrow(value, dim, 2 * half, 1), dim) if left % 2 else product
        left -= half
    re, im = value.tensors()
    return value if keepdim else Pair(re.squeeze(dim), im.squeeze(dim))


@rule(aten.cumprod)
def cumprod(want: ExpectedResult, z: Any, dim: int, *, dtype: Any = None) -> Pair:  # noqa: ARG001 (want has it)
    """Multiply each entry by the one 1, 2, 4, ... places before it (Hillis and Steele, CACM 29, 1170, 1986)."""
    value = lift(z, want.real)
    re, _ = value.tensors()
    count, shift = re.shape[dim] if re.dim() else 1, 1
    while shift < count:
        later = _narrow(value, dim, shift, count - shift) * _narrow(value, dim, 0, count - shift)
        value = _cat(_narrow(value, dim, 0, shift), later, dim)
        shift *= 2
    return value


def _narrow(z: Pair, dim: int, start: int, length: int) -> Pair:
    re, im = z.tensors()
    return Pair(re.narrow(dim, start, length), im.narrow(dim, start, length))


def _cat(a: Pair, b: Pair, dim: int) -> Pair:
    (ar, ai), (br, bi) = a.tensors(), b.tensors()
    return Pair(torch.cat((ar, br), dim), torch.cat((ai, bi), dim))


@rule(aten.linalg_vector_norm)
def vector_norm(want: ExpectedResult, z: Pair, *args: Any, **kwargs: Any) -> Any:
    """The norm of the moduli. A complex `dtype` means the precision of its parts."""
    if kwargs.get("dtype") in REAL:
        kwargs = {**kwargs, "dtype": REAL[kwargs["dtype"]]}
    return aten.linalg_vector_norm(modulus(want, z), *args, **kwargs)
