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

from torchwise.compile.layout import lay_out, order_of


def with_eager_strides(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` for Dynamo to trace, for static shapes, with its outputs laid out as the trace finds them.

    Called without being traced it changes nothing.
    """
    from torchwise._torch import pytree as _pytree

    def call_with_layout(*args: Any, **kwargs: Any) -> Any:
        return _pytree.tree_map(_as_it_lies, call(*args, **kwargs))

    return call_with_layout


def _as_it_lies(leaf: Any) -> Any:
    """Lay a tensor out in the order of dimensions that it has. One with gaps or repetitions is left as it comes."""
    return lay_out(leaf, order_of(leaf)) if isinstance(leaf, torch.Tensor) else leaf
