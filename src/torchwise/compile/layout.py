"""The order in which a tensor's dimensions lie in memory, and tensors laid out in such an order."""

from __future__ import annotations

import torch

Order = tuple[int, ...]
"""The dimensions, from the one with the longest stride on."""


def order_of(tensor: torch.Tensor) -> Order | None:
    """Return the order of a tensor's dimensions, or None if it has gaps or repetitions, or no strides."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    order = tuple(dim for _, dim in sorted([(-stride, dim) for dim, stride in enumerate(tensor.stride())]))
    return order if tensor.permute(order).is_contiguous() else None


def lay_out(tensor: torch.Tensor, order: Order | None) -> torch.Tensor:
    """Lay a tensor out in an order of dimensions, explicitly for a compiler. None leaves it as it comes."""
    if order is None:
        return tensor
    if order == tuple(range(tensor.dim())):
        return tensor.contiguous()
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(tensor.dim())])
