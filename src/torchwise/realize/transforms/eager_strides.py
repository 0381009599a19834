"""Outputs that lie in memory as eager's do, where Inductor by itself would lay them out otherwise.

Inductor's own form of `cat` is a copy of the one tensor that is not empty, in that tensor's strides, where eager's is
contiguous (torch 2.11 to 2.13): so begins every KV cache of Transformers. Dynamo, which traces before such forms take
the place of operators, knows eager's strides. So what it traces says in so many words how each output lies; where one
lies so already, that costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def laid_out(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` for Dynamo to trace, for static shapes: with its outputs laid out as they are found in the trace.

    Called without being traced it changes nothing.
    """
    from torch.utils import _pytree

    def laid(*args: Any, **kwargs: Any) -> Any:
        return _pytree.tree_map(_as_it_lies, call(*args, **kwargs))

    return laid


def _as_it_lies(leaf: Any) -> Any:
    """Lay a tensor out in the order of dimensions that it has; one with gaps or repetitions is left as it comes."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_nested:
        return leaf
    if leaf.is_contiguous():
        return leaf.contiguous()
    order = [dim for _, dim in sorted([(-stride, dim) for dim, stride in enumerate(leaf.stride())])]
    if not leaf.permute(order).is_contiguous():
        return leaf
    return leaf.permute(order).contiguous().permute([order.index(dim) for dim in range(leaf.dim())])
