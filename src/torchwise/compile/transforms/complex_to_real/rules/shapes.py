"""Operators that act on both parts alike: they move or convert numbers, or add them up.

Products along a dimension and norms are here, too. Sums are taken by parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise.compile.transforms.complex_to_real.pairs import (
    REAL,
    ExpectedResult,
    NotCoveredError,
    Pair,
    Part,
    lift,
    rule,
)
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import modulus, nonzero

aten, prims = torch.ops.aten, torch.ops.prims

# fmt: off
MOVES = (
    "_reshape_alias", "_unsafe_index", "_unsafe_view", "alias", "clone", "constant_pad_nd", "contiguous", "detach",
    "diag_embed", "diagonal", "diagonal_copy", "expand", "expand_copy", "flip", "gather", "index", "index_select",
    "lift_fresh", "lift_fresh_copy", "narrow", "permute", "permute_copy", "repeat", "reshape", "resolve_conj",
    "resolve_neg", "roll", "select", "select_copy", "slice", "slice_copy", "split", "split_with_sizes", "squeeze",
    "squeeze_copy", "t", "t_copy", "transpose", "transpose_copy", "tril", "triu", "unbind", "unfold", "unsqueeze",
    "unsqueeze_copy", "view", "view_copy",
)
# fmt: on
ADDS = ("cumsum", "mean", "sum", "nansum", "slice_backward", "select_backward")
VALUES: dict[str, tuple[str, ...]] = {
    "cat": ("tensors",),
    "stack": ("tensors",),
    "where": ("self", "other"),
    "masked_fill": ("self", "value"),
    "fill": ("self", "value"),
    "copy": ("self", "src"),
    "index_put": ("self", "values"),
    "_unsafe_index_put": ("self", "values"),
    "index_copy": ("self", "source"),
    "index_add": ("self", "source"),
    "scatter": ("self", "src", "value"),
    "scatter_add": ("self", "src"),
    "masked_scatter": ("self", "source"),
    "slice_scatter": ("self", "src"),
    "select_scatter": ("self", "src"),
    "diagonal_scatter": ("self", "src"),
    "slice_backward": ("grad_output",),
    "select_backward": ("grad_output",),
    "constant_pad_nd": ("self", "value"),
    "rev": ("a",),
}
"""The arguments that hold the numbers, if not `self` alone. Others, such as a mask or an index, stay."""

_RESHAPED: dict[str, Callable[..., Any]] = {"view": torch.reshape, "_unsafe_view": torch.reshape}
"""Parts may have another layout than the complex tensor, so that a view of it is a view of them only by chance."""


def apply_by_parts(want: ExpectedResult, *args: Any, **kwargs: Any) -> Any:
    """f(z) = f(re) + i f(im), for every f that is linear in its numbers."""
    name = want.target.overloadpacket.__name__
    if want.target is aten.view.dtype:
        raise NotCoveredError("it reads memory as another dtype")
    by_name = dict(zip((a.name for a in want.target._schema.arguments), args, strict=False))
    bound = {**by_name, **kwargs}
    if "reduce" in bound:
        raise NotCoveredError(f"{name} with reduce={bound['reduce']!r} is not linear")
    if bound.get("dtype") in REAL:
        bound["dtype"] = want.real
    lifted = {
        key: _lift_all(bound[key], want.real) for key in VALUES.get(name, ("self",)) if bound.get(key) is not None
    }
    call = _RESHAPED.get(name, want.target)

    def call_on_part(part: Callable[[Pair], Part]) -> Any:
        arguments = {**bound, **{key: _take_parts(pairs, bound[key], part) for key, pairs in lifted.items()}}
        by_place = [arguments.pop(key) for key in by_name]
        return call(*by_place, **arguments)

    if all(_is_zero(pair.im) for pair in _pytree.tree_leaves(list(lifted.values()))):
        return _make_pairs(call_on_part(_re), None)
    return _make_pairs(call_on_part(_re), call_on_part(_im))


for _name in dict.fromkeys([*MOVES, *ADDS, *VALUES]):
    if (_packet := getattr(aten, _name, None)) is not None:  # some operators came or went between versions of torch
        rule(_packet, computes=_name in ADDS)(apply_by_parts)
rule(prims.rev, computes=False)(apply_by_parts)


def _re(pair: Pair) -> Part:
    return pair.re


def _im(pair: Pair) -> Part:
    return pair.im


def _is_zero(part: Part) -> bool:
    return not isinstance(part, torch.Tensor) and part == 0.0


def _lift_all(value: Any, dtype: torch.dtype) -> Any:
    return [lift(v, dtype) for v in value] if isinstance(value, list | tuple) else lift(value, dtype)


def _take_parts(pairs: Any, originals: Any, part: Callable[[Pair], Part]) -> Any:
    """Take one part of each. A number stays a number where one was passed, and is filled up where a tensor was."""
    if isinstance(pairs, list):
        return [_take_parts(pair, original, part) for pair, original in zip(pairs, originals, strict=True)]
    value = part(pairs)
    if isinstance(value, torch.Tensor) or isinstance(originals, int | float | complex):
        return value
    return torch.full_like(pairs.tensors()[0], value)


def _make_pairs(re: Any, im: Any) -> Any:
    if isinstance(re, list | tuple):
        parts = [0.0] * len(re) if im is None else im
        return tuple(Pair(*both) for both in zip(re, parts, strict=True))
    return Pair(re, 0.0 if im is None else im)


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


@rule(aten.prod)
def prod(want: ExpectedResult, z: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Pair:  # noqa: ARG001
    """Multiply along a dimension, or over all of them, in halves: log₂ n products of ever shorter tensors."""
    re, im = lift(z, want.real).tensors()
    if dim is None:
        re, im, dim = re.reshape(-1), im.reshape(-1), 0
    if re.dim() == 0:
        return Pair(re, im)
    value, left = Pair(re, im), _known_length(re, dim)
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
    count, shift = _known_length(re, dim) if re.dim() else 1, 1
    while shift < count:
        later = _narrow(value, dim, shift, count - shift) * _narrow(value, dim, 0, count - shift)
        value = _cat(_narrow(value, dim, 0, shift), later, dim)
        shift *= 2
    return value


def _known_length(tensor: torch.Tensor, dim: int) -> int:
    """Return a length on which the number of operators depends, so that it must be one for all calls."""
    length: Any = tensor.shape[dim]
    if isinstance(length, torch.SymInt):
        raise NotCoveredError("the length of the dimension varies")
    return int(length)


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
