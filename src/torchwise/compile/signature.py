"""The properties that two calls must share if code compiled for one is to serve the other."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from torchwise.workload import pytree
from torchwise.workload.layouts import Overlap, overlap_of
from torchwise.workload.object_parts import describe, key_of_names
from torchwise.workload.pytree import PLAIN

T = TypeVar("T")

Signature = tuple[Any, ...]
MAX_SIGNATURES = 2**14
"""Maximum number of signatures that are remembered in one place. Those added first are forgotten, and found again."""


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return a hashable key: shape, dtype, device and strides of each tensor, plain values, and the nesting.

    The overlap of tensors that share memory counts (`overlap_of`). Code compiled for `f(x, x)` reads one input and not
    two. And a write to one of two views must be read from the other. Lazy negation and conjugation of a tensor count,
    too: compiled code and graphs read memory as it is.

    Dataclasses and kinds of dict count by their contents, public attributes included, other objects by their type
    alone. Nothing may be concluded from two calls that have such an object and share a signature (`opaque_leaves`).
    Flat positional arguments have a fast path, because this runs on every call.
    """
    if not kwargs:
        keys: list[Any] = []
        tensors = []
        for arg in args:
            kind = type(arg)
            if kind is torch.Tensor and is_strided(arg):
                keys.append(_tensor_key(arg))
                tensors.append(arg)
            elif kind in PLAIN:
                keys.append(plain_key(arg))
            else:
                break
        else:
            return (*keys, overlap_of(tensors)) if len(tensors) > 1 else tuple(keys)
    around: list[Any] = []
    tensors = []
    sort_leaves((args, kwargs), tensors, around)
    return (*around, *map(_any_tensor_key, tensors), overlap_of(tensors))


def forget_oldest(known: dict[T, Any], most: int | None = None) -> list[T]:
    """Remove the entries added first beyond `most`, by default `MAX_SIGNATURES`, and return their keys.

    If another thread changes the entries meanwhile, some stay until the next call.
    """
    forgotten: list[T] = []
    with contextlib.suppress(RuntimeError, StopIteration):
        while len(known) > (MAX_SIGNATURES if most is None else most):
            oldest = next(iter(known))
            known.pop(oldest, None)
            forgotten.append(oldest)
    return forgotten


def overlap_in(signature: Signature) -> Overlap | None:
    """Return the overlap of the tensors of a call with this signature, or None if they share no memory."""
    found = signature[-1] if signature else None
    return found if isinstance(found, Overlap) else None


def _tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride(), tensor.is_neg(), tensor.is_conj()


def _any_tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return _tensor_key(tensor) if is_strided(tensor) else (tensor.dtype, tensor.device, tensor.layout)


def sort_leaves(children: Iterable[Any], tensors: list[torch.Tensor], around: list[Any]) -> None:
    """Sort the contents of containers into the tensors and, as keys, everything around them."""
    for child in children:
        kind = type(child)
        if kind is torch.Tensor:
            tensors.append(child)
            around.append(kind)
        elif kind is tuple or kind is list:
            around.append((kind, len(child)))
            sort_leaves(child, tensors, around)
        elif kind is dict:
            around.append((kind, key_of_names(child)))
            sort_leaves(child.values(), tensors, around)
        elif kind in PLAIN:
            around.append(plain_key(child))
        elif isinstance(child, torch.Tensor):
            tensors.append(child)
            around.append(kind)
        elif is_plain(child):
            around.append(plain_key(child))
        else:
            parts = describe(child)
            around.append(parts.key)
            sort_leaves(parts.values, tensors, around)


def plain_key(leaf: Any) -> Any:
    """Distinguish 1 from 1.0 and True, and 0.0 from -0.0. All NaN are the same."""
    kind = type(leaf)
    return (kind, repr(leaf)) if kind is float or kind is complex else (kind, leaf)


def is_equal(a: Any, b: Any) -> bool:
    """Whether two leaves are plain data of one type and value."""
    return is_plain(a) and is_plain(b) and bool(plain_key(a) == plain_key(b))


def opaque_leaves(tree: Any) -> list[str]:
    """Describe each leaf that is neither a tensor nor plain data: tensors inside it can be neither found nor copied."""
    leaves = pytree.list_named_leaves(tree)
    return [
        f"{path or 'it'}, an object of type {type(leaf).__qualname__}"
        for path, leaf in leaves
        if not isinstance(leaf, torch.Tensor) and not is_plain(leaf)
    ]


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is data that is fully described by its value, and that holds no tensor."""
    return type(leaf) in PLAIN or isinstance(leaf, _plain_types())


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether shape and strides describe a tensor's memory: it is neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


@functools.cache
def _plain_types() -> tuple[type, ...]:
    descriptions = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
    return (bool, int, float, complex, str, bytes, enum.Enum, *descriptions)
