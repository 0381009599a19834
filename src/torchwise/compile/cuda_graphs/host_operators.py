"""The operators that involve the CPU: those that copy from it, and those for whose result it waits.

Tensors that are computed only from Python numbers are the same on every call: `Constants` finds them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise.workload import pytree
from torchwise.workload.layouts import count_writes

aten = torch.ops.aten
_TO, _COPY = aten._to_copy.default, aten.copy_.default
_WRITES = (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
_INDEXING = (aten.index.Tensor, *_WRITES)
_MOVES = (*_INDEXING, aten.where.self)
"""Operators that copy their arguments to the GPU if these are on the CPU."""
_WAITING_TAGS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_MASKS = (torch.bool, torch.uint8)

Arguments = tuple[Any, ...]


def copies_over(func: Any, args: Arguments, kwargs: Mapping[str, Any], device: str) -> bool:
    """Whether an operator copies a tensor of the CPU to the device."""
    if func is _TO:
        return _is_on(args[0], "cpu") and kwargs.get("device") is not None and kwargs["device"].type == device
    if func is _COPY:
        return _is_on(args[0], device) and _is_on(args[1], "cpu")
    if func not in _MOVES:
        return False
    tensors = pytree.tensors(args)
    return any(_is_on(t, device) for t in tensors) and any(_is_on(t, "cpu") for t in tensors)


def with_brought(args: Arguments, bring: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
    """Return the arguments with each tensor of the CPU replaced by the result of `bring`."""
    moved: Arguments = pytree.map_tensors(lambda tensor: bring(tensor) if tensor.device.type == "cpu" else tensor, args)
    return moved


def has_masks(func: Any, args: Arguments) -> bool:
    """Whether an operator takes masks as indices."""
    return func in _INDEXING and any(index is not None and index.dtype in _MASKS for index in args[1])


def replace_masks(args: Arguments, find: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
    """Return arguments of indexing with each mask replaced by the positions of its True elements, as PyTorch does."""
    indices: list[Any] = []
    for index in args[1]:
        indices += find(index).unbind(1) if index is not None and index.dtype in _MASKS else [index]
    return (args[0], indices, *args[2:])


def waits(func: Any, args: Arguments, kwargs: Mapping[str, Any], device: str) -> bool:
    """Whether the CPU waits for an operator's result on the device: a number, or a count of elements."""
    if func is _TO:
        return _is_on(args[0], device) and kwargs.get("device") is not None and kwargs["device"].type == "cpu"
    if func is _COPY:
        return _is_on(args[0], "cpu") and _is_on(args[1], device)
    if func in _INDEXING:
        return any(_is_on(index, device) and index.dtype in _MASKS for index in args[1])
    if kwargs.get("output_size") is not None or not any(tag in func.tags for tag in _WAITING_TAGS):
        return False
    return any(_is_on(tensor, device) for tensor in pytree.tensors(args))


def reads_numbers(func: Any, args: Arguments) -> bool:
    """Whether an operator waits for numbers that differ on nearly every call."""
    if func not in (_TO, _COPY, aten._local_scalar_dense.default):
        return False
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in pytree.tensors(args))


def one_value_where_masked(func: Any, args: Arguments) -> bool:
    """Whether an operator writes one value at the positions of a mask, so that it need not wait."""
    if func not in _WRITES[1:] or (len(args) > 3 and args[3]):
        return False
    _, indices, value = args[:3]
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype in _MASKS and value.numel() == 1


def write_where_masked(into: torch.Tensor, indices: Any, value: torch.Tensor, *_: Any) -> torch.Tensor:
    """Write one value at the positions of a mask, as PyTorch does without a dispatch mode."""
    mask = indices[0].to(torch.bool)
    mask = mask.reshape(*mask.shape, *(1,) * (into.dim() - mask.dim()))
    if value.is_cpu:  # its value is known: nothing is copied
        return into.masked_fill_(mask, value.reshape(()))
    return into.copy_(torch.where(mask, value.reshape(()).to(into), into))


def result_key(result: Any, device: str) -> Hashable:
    """Return everything about an operator's result that Python can read: numbers, sizes, and all values on the CPU."""
    return tuple(_leaf_key(leaf, device) for leaf in _pytree.tree_leaves(result))


def _leaf_key(leaf: Any, device: str) -> Hashable:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), leaf
    values = () if leaf.device.type == device else tuple(leaf.flatten().tolist())
    return leaf.dtype, tuple(leaf.shape), values


def _is_on(thing: Any, device: str) -> bool:
    return isinstance(thing, torch.Tensor) and thing.device.type == device


LIFT = torch.ops.aten.lift_fresh.default
"""The operator that `torch.tensor` and `torch.from_numpy` apply to their new tensors."""


class MadeTensors:
    """The tensors that one call created. A later write to a tensor removes it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int | None]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor in its present state."""
        self._known[id(tensor)] = (weakref.ref(tensor), count_writes(tensor))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was added, and not written to since."""
        known, version = self._known.get(id(tensor), (None, None))
        return known is not None and known() is tensor and version is not None and version == count_writes(tensor)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was added, with or without later writes to it."""
        known, _ = self._known.get(id(tensor), (None, None))
        return known is not None and known() is tensor


class Constants(MadeTensors):
    """Tensors that are the same on every call."""

    def note(self, func: Any, inputs: Sequence[torch.Tensor], results: Iterable[torch.Tensor]) -> None:
        """Add an operator's results if all of its inputs are the same on every call.

        If it may write, all tensors that share memory with its inputs are removed: `tensor.data` has its own version.
        """
        if func._schema.is_mutable:
            self._forget({_memory_of(tensor) for tensor in inputs})
        elif func is not LIFT and not all(map(self.holds, inputs)):
            return
        elif torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func.__name__:
            for tensor in results:
                self.add(tensor)

    def _forget(self, memories: set[int]) -> None:
        alive = ((key, known()) for key, (known, _) in self._known.items())
        gone = [key for key, tensor in alive if tensor is None or _memory_of(tensor) in memories]
        for key in gone:
            del self._known[key]


def _memory_of(tensor: torch.Tensor) -> int:
    """Return an identifier of a tensor's memory, unique among living tensors."""
    return int(tensor.untyped_storage()._cdata)
