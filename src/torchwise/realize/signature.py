"""What two calls must share for what was compiled for one to serve the other."""

from __future__ import annotations

from typing import Any

Signature = tuple[Any, ...]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return a hashable key: shape, dtype, device and strides of each tensor, plain values, and the nesting.

    Flat arguments take a short cut, because this runs on every call.
    """
    import torch
    from torch.utils import _pytree

    if not kwargs and all(type(arg) is torch.Tensor for arg in args):
        return tuple((arg.shape, arg.dtype, arg.device, arg.stride()) for arg in args)
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    return (spec, *map(_leaf_key, leaves))


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
