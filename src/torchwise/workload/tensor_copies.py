"""Copies of tensors of any layout that share memory if their originals do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.workload import pytree

_ALIGNED = 16
"""Bytes of the largest element: a copy of memory begins at a multiple of it."""


class TensorCopies:
    """Copies tensors, and memory that several of them lie in but once."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._convert = convert
        self._ends: dict[tuple[int, Any], tuple[int, int]] = {}
        self._memory: dict[tuple[int, Any], torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Announce a tensor that may be copied: its memory is copied as far as all announced tensors reach."""
        if place := self._place_of(tensor):
            start, end = _span(tensor)
            known = self._ends.get(place, (start, end))
            self._ends[place] = min(start, known[0]), max(end, known[1])

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it. The result of a graph becomes a value without one."""
        with torch.no_grad():
            place = self._place_of(tensor)
            copied = self._view_memory_copy(tensor, place) if place else self._copy_alone(tensor)
            if isinstance(tensor, torch.nn.Parameter) and not isinstance(copied, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=False)
            needs = tensor.requires_grad and tensor.is_leaf and (copied.is_floating_point() or copied.is_complex())
            return copied.requires_grad_(needs) if copied.requires_grad is not needs else copied

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, Any] | None:
        """Name the memory of a tensor, or return None if it has none of the usual kind, or holds its own negative.

        If tensors are converted, those of one dtype have a memory of their own.
        """
        if not is_plain_tensor(tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.is_quantized or tensor.is_neg() or not tensor.numel():
            return None
        address = tensor.untyped_storage().data_ptr()  # none on "meta"
        return (address, tensor.dtype if self._convert else None) if address else None

    def _copy_alone(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_plain_tensor(tensor) or tensor.is_nested or not tensor.is_leaf:
            copied = pytree.copy_of(tensor)
        else:  # a class of its own, which knows how
            copied = tensor.__deepcopy__({})
        if self._convert is None or torch.nn.parameter.is_lazy(copied):
            return copied
        if torch.nn.Parameter not in type(copied).__mro__:
            return self._convert(copied)
        copied.data = self._convert(copied.data)  # so that it stays of its class
        return copied

    def _view_memory_copy(self, tensor: torch.Tensor, place: tuple[int, Any]) -> torch.Tensor:
        start, _ = self._ends[place]
        if place not in self._memory:
            self._memory[place] = self._copy_range(tensor, *self._ends[place])
        memory = self._memory[place]
        copied = (memory if self._convert else tensor.detach()).new_empty(0)
        offset = tensor.storage_offset() - start // tensor.element_size()
        copied = copied.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())
        return copied.conj() if tensor.is_conj() else copied

    def _copy_range(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Copy a range of a tensor's memory: as bytes, or in its dtype if it is converted."""
        size = tensor.element_size() if self._convert else 1
        alias = tensor.detach().new_empty(0) if self._convert else tensor.new_empty(0, dtype=torch.uint8)
        alias.set_(tensor.untyped_storage(), start // size, ((end - start) // size,), (1,))
        return self._convert(alias.clone()) if self._convert else alias.clone()


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor or a parameter, and of no derived class."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and last byte that a tensor reaches in its memory."""
    size = tensor.element_size()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    return start - start % _ALIGNED, start + (last + 1) * size


def gradient_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient that a copy keeps: none of a parameter's, as `copy.deepcopy` has it."""
    keeps = tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter) and tensor.grad is not None
    return [tensor.grad] if keeps else []  # type: ignore[list-item]
