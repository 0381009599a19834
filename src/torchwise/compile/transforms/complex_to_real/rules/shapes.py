"""Operators that act on both parts alike: they move numbers, or add them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise.compile.transforms.complex_to_real.registry import ExpectedResult, NotCoveredError, rule
from torchwise.compile.transforms.complex_to_real.values import REAL, Pair, Part, lift

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
