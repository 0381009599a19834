"""The properties that two calls must share if code compiled for one is to serve the other."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchwise._torch.dynamo import make_tensor_check
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.layouts import Overlap, are_disjoint, overlap_of, reach_of
from torchwise.workload.object_parts import describe, key_of_names
from torchwise.workload.pytree import PLAIN

Signature = tuple[Any, ...]

_address = torch.Tensor.data_ptr
_NONE: Mapping[str, Any] = {}


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
    _sort((args, kwargs), tensors, around)
    return (*around, *map(_any_tensor_key, tensors), overlap_of(tensors))


def overlap_in(signature: Signature) -> Overlap | None:
    """Return the overlap of the tensors of a call with this signature, or None if they share no memory."""
    found = signature[-1] if signature else None
    return found if isinstance(found, Overlap) else None


def _tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride(), tensor.is_neg(), tensor.is_conj()


def _any_tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return _tensor_key(tensor) if is_strided(tensor) else (tensor.dtype, tensor.device, tensor.layout)


def _sort(children: Iterable[Any], tensors: list[torch.Tensor], around: list[Any]) -> None:
    """Sort the contents of containers into the tensors and, as keys, everything around them."""
    for child in children:
        kind = type(child)
        if kind is torch.Tensor:
            tensors.append(child)
            around.append(kind)
        elif kind is tuple or kind is list:
            around.append((kind, len(child)))
            _sort(child, tensors, around)
        elif kind is dict:
            around.append((kind, key_of_names(child)))
            _sort(child.values(), tensors, around)
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
            _sort(parts.values, tensors, around)


def plain_key(leaf: Any) -> Any:
    """Distinguish 1 from 1.0 and True, and 0.0 from -0.0. All NaN are the same."""
    kind = type(leaf)
    return (kind, repr(leaf)) if kind is float or kind is complex else (kind, leaf)


def is_equal(a: Any, b: Any) -> bool:
    """Whether two leaves are plain data of one type and value."""
    return is_plain(a) and is_plain(b) and bool(plain_key(a) == plain_key(b))


class Recognizer:
    """Recognizes calls with the signature of an earlier call, faster than by computing the signature.

    It may fail to recognize a call, such as in another grad or inference mode, but never accepts a different one.
    PyTorch's own guards check all tensors in one step: type, dtype, device, layout, shape, strides, lazy negation and
    conjugation.

    Args:
        args: positional arguments of the earlier call: distinct strided tensors and plain values, also in containers
            and dataclasses.
        kwargs: keyword arguments of the earlier call.

    Raises:
        UnsupportedError: they have other values, or this torch lacks those guards.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE) -> None:
        tensors: list[torch.Tensor] = []
        self._around: list[Any] = []
        _sort((args, dict(kwargs)), tensors, self._around)
        are_plain = all(type(tensor) is torch.Tensor and is_strided(tensor) for tensor in tensors)
        are_distinct = 0 < len(tensors) == len(set(map(id, tensors)))
        if not are_plain or not are_distinct or opaque_leaves((args, dict(kwargs))):
            raise UnsupportedError(
                "it is recognised by its signature: there are other than distinct strided tensors and values"
            )
        leaves = (*args, *kwargs.values())
        self._is_flat = all(type(leaf) is torch.Tensor or type(leaf) in PLAIN for leaf in leaves)
        self._positional_count, self._names = len(args), tuple(kwargs)
        self._places = [place for place, leaf in enumerate(leaves) if type(leaf) is torch.Tensor]
        self._plain = [(place, plain_key(leaf)) for place, leaf in enumerate(leaves) if type(leaf) in PLAIN]
        self._reaches, self._overlap = [*map(reach_of, tensors)], overlap_of(tensors)
        self._addresses = [*map(_address, tensors)]
        empty = [place for place, reach in enumerate(self._reaches) if not reach]
        self._empty = empty if len(empty) > 1 else []
        self._check = make_tensor_check(tensors)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE) -> bool:
        """Whether a call with these arguments certainly has the same signature."""
        if self._is_flat:  # the usual case is the quickest
            if len(args) != self._positional_count or (tuple(kwargs) != self._names if kwargs else self._names):
                return False
            leaves = (*args, *kwargs.values()) if kwargs else args
            for place, key in self._plain:
                if plain_key(leaves[place]) != key:
                    return False
            flat = [leaves[place] for place in self._places] if self._plain else leaves
            return self._are_alike(flat)
        tensors: list[torch.Tensor] = []
        around: list[Any] = []
        _sort((args, kwargs), tensors, around)
        return around == self._around and self._are_alike(tensors)

    def _are_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        for tensor in tensors:
            if getattr(tensor, "is_nested", False):  # PyTorch's guards end the process on a nested one
                return False
        return self._check(*tensors) and self._lie_alike(tensors)

    def _lie_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors, each like one of the call seen, share memory as those do, or none."""
        if len(self._reaches) == 1:
            return True
        if self._empty and len({id(tensors[place]) for place in self._empty}) < len(self._empty):
            return False  # one empty tensor given twice, which no address shows
        addresses = [*map(_address, tensors)]
        if addresses == self._addresses:  # a program in its stride gives the same addresses again and again
            return True
        is_apart = self._overlap is None and are_disjoint(addresses, self._reaches)
        if not is_apart and overlap_of(tensors) != self._overlap:
            return False
        self._addresses = addresses
        return True


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
