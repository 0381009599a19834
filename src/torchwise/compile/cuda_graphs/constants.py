"""Tensors that are the same on every call, as they are computed only from Python numbers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

LIFT = torch.ops.aten.lift_fresh.default
"""The operator that `torch.tensor` and `torch.from_numpy` apply to their new tensors."""


class MadeTensors:
    """The tensors that one call created. A later write to a tensor removes it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int | None]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor in its present state."""
        self._known[id(tensor)] = (weakref.ref(tensor), version_of(tensor))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was added, and not written to since."""
        known, version = self._known.get(id(tensor), (None, None))
        return known is not None and known() is tensor and version is not None and version == version_of(tensor)

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


def version_of(tensor: torch.Tensor) -> int | None:
    """Return PyTorch's count of writes to a tensor, or None if it keeps none."""
    return None if tensor.is_inference() else tensor._version
