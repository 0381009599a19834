"""Outputs with eager's layout in memory, if Inductor by itself would lay them out otherwise.

Inductor's own form of `cat` is a copy of the one tensor that is not empty, in that tensor's strides. Eager's is
contiguous (torch 2.11 to 2.13). Every KV cache of Transformers begins that way. Dynamo, which traces before such forms
take the place of operators, knows eager's strides. So the traced code states the layout of each output. An output that
has the layout already costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def with_eager_strides(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` for Dynamo to trace, with its outputs laid out as the trace finds them.

    Called without being traced it changes nothing.
    """
    from torchwise._torch import pytree as _pytree

    def call_with_layout(*args: Any, **kwargs: Any) -> Any:
        return _pytree.tree_map(_as_it_lies, call(*args, **kwargs))

    return call_with_layout


def _as_it_lies(leaf: Any) -> Any:
    """Lay a tensor out in the order of dimensions that it has. One with gaps or repetitions is left as it comes."""
    return lay_out(leaf, order_of(leaf)) if isinstance(leaf, torch.Tensor) else leaf


Order = tuple[int, ...]
"""The dimensions, from the one with the longest stride on."""


def order_of(tensor: torch.Tensor) -> Order | None:
    """Return the order of a tensor's dimensions, or None if it has gaps or repetitions, or no strides."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    strides: tuple[int, ...] = tensor.stride()
    order: list[int] = []
    for dim, stride in enumerate(strides):  # Dynamo traces no sort of sizes that vary
        place = sum([strides[other] >= stride for other in order])
        order.insert(place, dim)
    return tuple(order) if tensor.permute(order).is_contiguous() else None


def lay_out(tensor: torch.Tensor, order: Order | None) -> torch.Tensor:
    """Lay a tensor out in an order of dimensions, explicitly for a compiler. None leaves it as it comes."""
    if order is None:
        return tensor
    if order == tuple(range(tensor.dim())):
        return tensor.contiguous()
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(tensor.dim())])
