"""What two calls must share for what was compiled for one to serve the other."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.workload import trees

Signature = tuple[Any, ...]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return a hashable key: shape, dtype, device and strides of each tensor, plain values, and the nesting.

    Whether a tensor is negated or conjugated lazily counts, too: compiled code and graphs read memory as it is.

    Dataclasses count by what is in them, other objects by their type alone: nothing may be concluded from two calls
    that have one and share a signature (`opaque_leaves`). Flat positional arguments take a short cut,
    because this runs on every call.
    """
    if not kwargs:
        keys: list[Any] = []
        tensors = []
        for arg in args:
            kind = type(arg)
            if kind is torch.Tensor and arg.layout is torch.strided and not arg.is_nested:
                keys.append((arg.shape, arg.dtype, arg.device, arg.stride(), arg.is_neg(), arg.is_conj()))
                tensors.append(arg)
            elif kind in PLAIN:
                keys.append(plain_key(arg))
            else:
                break
        else:
            return (*keys, _same(tensors)) if len(tensors) > 1 else tuple(keys)
    return (_tree_key((args, kwargs)), _same(trees.tensors((args, kwargs))))


def _same(tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """Tell which tensors are one and the same: for each the position of its first mention; None where all differ.

    What was compiled for `f(x, x)` reads one input and not two.
    """
    if len(tensors) == len(set(map(id, tensors))):
        return None
    places: dict[int, int] = {}
    return tuple(places.setdefault(id(tensor), position) for position, tensor in enumerate(tensors))


def plain_key(leaf: Any) -> Any:
    """Tell 1 from 1.0 and True, and 0.0 from -0.0; every NaN is the same."""
    kind = type(leaf)
    return (kind, repr(leaf)) if kind is float or kind is complex else (kind, leaf)


class Recognizer:
    """Tells whether a call has the signature of one that was seen, in a quarter of the time that making it takes.

    It may fail to recognise a call (in another grad or inference mode, say), and never takes one for what it is not.
    PyTorch's own guards look at all tensors in one step: type, dtype, device, layout, shape, strides, lazy negation
    and conjugation.

    Args:
        args: of the call seen, which must have no keyword arguments: distinct strided tensors, and plain values.

    Raises:
        UnsupportedError: there is something else among them, or this torch lacks those guards.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._places = [place for place, arg in enumerate(args) if type(arg) is torch.Tensor and is_strided(arg)]
        tensors = [args[place] for place in self._places]
        plain = [(place, arg) for place, arg in enumerate(args) if type(arg) in PLAIN]
        if not tensors or len(tensors) + len(plain) < len(args) or _same(tensors) is not None:
            raise UnsupportedError(
                "it is recognised by its signature: there are other than distinct strided tensors and values"
            )
        self._plain = [(place, type(arg), arg, plain_key(arg)) for place, arg in plain]
        self._length = len(args)
        self._check = guards_of(tensors)

    def __call__(self, args: tuple[Any, ...]) -> bool:
        """Whether a call with these arguments, and no keyword arguments, is surely alike."""
        if len(args) != self._length:
            return False
        for place, kind, value, key in self._plain:
            arg = args[place]
            if arg is not value and (type(arg) is not kind or plain_key(arg) != key):
                return False
        tensors = [args[place] for place in self._places] if self._plain else args
        for tensor in tensors:
            if getattr(tensor, "is_nested", False):  # PyTorch's guards end the process on one
                return False
        return self._check(*tensors) and len(set(map(id, tensors))) == len(tensors)


def guards_of(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """Return what tells whether as many tensors are like these, in one step: PyTorch's guards.

    It may say no in another grad or inference mode. A nested tensor must not come near it: it ends the process.

    Raises:
        UnsupportedError: this torch lacks those guards.
    """
    from torch._C._dynamo import guards

    shapes: Any = [list(t.shape) for t in tensors]  # PyTorch's own stub has them wrong
    strides: Any = [list(t.stride()) for t in tensors]
    try:
        made = guards.TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    except (AttributeError, TypeError) as error:
        raise UnsupportedError(f"torch {torch.__version__} has no such guards: {error}") from error
    check: Callable[..., bool] = made.check
    return check


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
    return type(leaf) in PLAIN or isinstance(leaf, _plain_types())


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether shape and strides say how a tensor lies in memory: it is neither sparse nor nested."""
    return tensor.layout is torch.strided and not tensor.is_nested


PLAIN = frozenset({bool, int, float, complex, str, type(None)})


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
        if not is_strided(leaf):
            return (type(leaf), leaf.dtype, leaf.device, leaf.layout)
        return (type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.is_neg(), leaf.is_conj())
    if is_plain(leaf):
        return plain_key(leaf)
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):  # walked as `trees` walks it
        return (type(leaf), *(_tree_key(getattr(leaf, f.name)) for f in dataclasses.fields(leaf) if f.init))
    return type(leaf)
