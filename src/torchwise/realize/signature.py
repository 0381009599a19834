"""What two calls must share for what was compiled for one to serve the other."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import torch

from torchwise.workload import trees

Signature = tuple[Any, ...]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return a hashable key: shape, dtype, device and strides of each tensor, plain values, and the nesting.

    Whether a tensor is negated lazily counts, too: compiled code reads memory as it is.

    Dataclasses count by what is in them, other objects by which one it is. Flat positional arguments take a short cut,
    because this runs on every call.
    """
    if not kwargs:
        keys: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is torch.Tensor:
                keys.append((arg.shape, arg.dtype, arg.device, arg.stride(), arg.is_neg()))
            elif kind in _PLAIN:
                keys.append((kind, arg))
            else:
                break
        else:
            return tuple(keys)
    return _tree_key((args, kwargs))


def opaque_leaves(tree: Any) -> list[str]:
    """Describe each leaf that is neither a tensor nor plain data: tensors inside it can be neither found nor copied."""
    leaves = trees.named_leaves(tree)
    return [
        f"{path or 'it'}, an object of type {type(leaf).__qualname__}"
        for path, leaf in leaves
        if not isinstance(leaf, torch.Tensor) and not is_plain(leaf)
    ]


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is data that its value says everything about, and that holds no tensor."""
    return type(leaf) in _PLAIN or isinstance(leaf, _plain_types())


_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


@functools.cache
def _plain_types() -> tuple[type, ...]:
    descriptions = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
    return (bool, int, float, complex, str, bytes, enum.Enum, *descriptions)


def _tree_key(tree: Any) -> Signature:
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten(tree)
    return (spec, *map(_leaf_key, leaves))


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        strides = leaf.stride() if leaf.layout is torch.strided else leaf.layout
        return (leaf.shape, leaf.dtype, leaf.device, strides, leaf.is_neg())
    if is_plain(leaf):
        return (type(leaf), leaf)
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):  # walked as `trees` walks it
        return (type(leaf), *(_tree_key(getattr(leaf, f.name)) for f in dataclasses.fields(leaf) if f.init))
    return (type(leaf), id(leaf))
