"""Count an operator's floating-point operations, by PyTorch's own counter and the formulas that it lacks.

An addition and a multiplication count as one each, as in `torch.utils.flop_counter`. For complex numbers they count as
four real ones each. Terms fused into a product, such as a bias or an activation, are left out, as in PyTorch's
counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_flop_count

_VIEWS = (
    "empty empty_like empty_strided as_strided as_strided_ view view_as _unsafe_view _reshape_alias detach alias t "
    "transpose transpose_ mT permute expand expand_as slice narrow select unbind split unsafe_split chunk unsafe_chunk "
    "unsqueeze squeeze unflatten movedim real view_as_real view_as_complex lift_fresh resolve_conj resolve_neg "
    "result_type cudnn_is_acceptable _nnpack_available"
)
_MOVES = (
    "copy_ copy to _to_copy clone contiguous reshape flatten cat stack index index_select index_put_ gather embedding "
    "fill_ zero_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full constant_pad_nd "
    "slice_scatter select_scatter repeat roll flip masked_fill masked_fill_ where unfold im2col pixel_shuffle"
)
VIEWS = frozenset(f"aten::{name}" for name in _VIEWS.split())
"""Operators that touch no element: they take only the host's time."""
MOVES = frozenset(f"aten::{name}" for name in _MOVES.split())
"""Operators that move data and compute nothing."""
COMPLEX_FACTOR = 4
"""Real operations for each complex one: four products and four sums for one of each."""

_FEED_FORWARD = 12
"""Index of the first feed-forward weight among an encoder layer's arguments after its width."""

Shape = tuple[int, ...]


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float | None:
    """Return the operations of one call of an operator, or None if unknown."""
    if (name := func._schema.name) in VIEWS or name in MOVES:
        return 0.0
    if (count := flop_registry.get(func._overloadpacket)) is None:
        return None
    is_complex = any(isinstance(each, torch.Tensor) and each.is_complex() for each in args)
    try:
        return float(count(*args, **kwargs, out_val=result)) * (COMPLEX_FACTOR if is_complex else 1)
    except Exception:  # PyTorch's formulas take no nested tensors, among others: then the count is unknown
        return None


def is_counted(func: Any) -> bool:
    """Return whether there is a formula for an operator as a whole."""
    return func._overloadpacket in flop_registry


def product_flops(name: str, shapes: tuple[Shape, ...], is_complex: bool) -> float | None:
    """Return the operations of a matrix product from its shapes, or None for another operator."""
    operands = shapes[: 3 if "add" in name else 2]
    try:
        return float(flop_registry[_PRODUCTS[name]](*operands)) * (COMPLEX_FACTOR if is_complex else 1)
    except (KeyError, TypeError, ValueError, AssertionError):  # no product, or shapes that fit no product
        return None


def _register(*names: str, get_raw: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add a formula for operators that this PyTorch has without a formula."""
    packets = [getattr(torch.ops.aten, name, None) for name in names]
    missing = [packet for packet in packets if packet is not None and packet not in flop_registry]
    return register_flop_formula(missing, get_raw=get_raw)


_register("_addmm_activation", get_raw=True)(flop_registry[torch.ops.aten.addmm])
_register("addbmm", get_raw=True)(flop_registry[torch.ops.aten.baddbmm])


@_register("mv", "dot", "vdot")
def _count_vector_flops(left: Shape, *_args: Any, **_kwargs: Any) -> int:
    return 2 * math.prod(left)


@_register("addmv")
def _add_by_vector(_added: Shape, left: Shape, *_args: Any, **_kwargs: Any) -> int:
    return 2 * math.prod(left)


@_register("addr")
def _outer(_added: Shape, left: Shape, right: Shape, *_args: Any, **_kwargs: Any) -> int:
    return 2 * math.prod(left) * math.prod(right)


@_register("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable")
def _attention(query: Shape, key: Shape, value: Shape, *_args: Any, **_kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


@_register("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(_grad: Shape, query: Shape, key: Shape, value: Shape, *_args: Any, **_kwargs: Any) -> int:
    """Count the scores once more, and the gradients of four products: five products in place of two."""
    return int(sdpa_flop_count(query, key, value)) * 5 // 2


@_register("_native_multi_head_attention")
def _multi_head(query: Shape, key: Shape, _value: Shape, width: int, _heads: int, *_args: Any, **_kwargs: Any) -> int:
    return _multi_head_count(query[0], query[1], key[1], width)


@_register("_transformer_encoder_layer_fwd")
def _encoder_layer(src: Shape, width: int, *args: Any, **_kwargs: Any) -> int:
    """Count attention, and a feed-forward part of two products."""
    batch, length, inner = math.prod(src[:-2]), src[-2], int(args[_FEED_FORWARD][0])
    return _multi_head_count(batch, length, length, width) + 4 * batch * length * width * inner


@_register("mkldnn_rnn_layer")
def _rnn_layer(x: Shape, *weights: Any, **_kwargs: Any) -> int:
    return _rnn_count(x, weights[:2])


@_register("mkldnn_rnn_layer_backward")
def _rnn_layer_backward(x: Shape, *weights: Any, **_kwargs: Any) -> int:
    return 2 * _rnn_count(x, weights[:2])


@_register("_cudnn_rnn", "miopen_rnn")
def _rnn(x: Shape, weights: Any, *_args: Any, **_kwargs: Any) -> int:
    return _rnn_count(x, weights)


@_register("_cudnn_rnn_backward", "miopen_rnn_backward")
def _rnn_backward(x: Shape, weights: Any, *_args: Any, **_kwargs: Any) -> int:
    return 2 * _rnn_count(x, weights)


def _multi_head_count(batch: int, queries: int, keys: int, width: int) -> int:
    """Count the four projections, the scores, and their product with the values."""
    projections = 2 * width * width * (2 * queries + 2 * keys)
    return batch * (projections + 4 * queries * keys * width)


def _rnn_count(x: Shape, weights: Any) -> int:
    """Count every weight of a matrix once at each step of each sequence."""
    used: int = sum(math.prod(shape) for shape in weights if len(shape) == 2)
    return 2 * math.prod(x[:-1]) * used


_PRODUCTS = {
    f"aten::{name}": getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv", "dot")
}
