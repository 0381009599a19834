"""What two calls must share for what was compiled for one to serve the other."""

from __future__ import annotations

import functools
from typing import Any

Signature = tuple[Any, ...]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return a hashable key: shape, dtype, device and strides of each tensor, plain values, and the nesting.

    Flat positional arguments take a short cut, because this runs on every call.
    """
    if not kwargs:
        keys: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is _tensor_type():
                keys.append((arg.shape, arg.dtype, arg.device, arg.stride()))
            elif kind in _PLAIN:
                keys.append((kind, arg))
            else:
                break
        else:
            return tuple(keys)
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten((args, kwargs))
    return (spec, *map(_leaf_key, leaves))


_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


@functools.cache
def _tensor_type() -> type:
    import torch

    return torch.Tensor


def _leaf_key(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        strides = leaf.stride() if leaf.layout is torch.strided else leaf.layout
        return (leaf.shape, leaf.dtype, leaf.device, strides)
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), id(leaf))
    return (type(leaf), leaf)
