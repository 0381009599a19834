"""The progress of a rollout, and the form of its state from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad

from torchwise.compile.cuda_graphs.loop_graph import find_overlaps, span
from torchwise.compile.signature import is_plain, is_strided, plain_key
from torchwise.errors import InputError
from torchwise.workload import pytree

ALIGNMENT = 16
"""Bytes of the largest number, complex128. Memory copied from a multiple of it on keeps numbers aligned."""


@dataclass(slots=True)
class LoopProgress:
    """How far one rollout is.

    Attributes:
        state: the state now.
        steps: how many steps there are to take.
        every: steps between snapshots, or None.
        done: how many were taken.
        snapshots: copies of the state after each `every` steps.
        varies: whether anything but tensors changed from step to step, such as a count kept as a number.
    """

    state: Any
    steps: int
    every: int | None
    done: int = 0
    snapshots: list[Any] = field(default_factory=list)
    varies: bool = False

    def advance(self, step: Callable[[Any], Any]) -> None:
        """Take one step as written.

        Raises:
            InputError: it returns another structure, shape, dtype or device than it received.
        """
        before = self.state
        expected = _list_layouts(before)  # first, for a step may change its state in place
        self.state = step(before)
        self.done += 1
        if (found := _list_layouts(self.state)) != expected:
            self._check(before, expected, found)
        if self.every and self.done % self.every == 0:
            self.snapshots.append(copies(self.state))

    def fits(self, length: int) -> bool:
        """Whether the next `length` steps end before the rollout does, and meet the snapshots as recorded."""
        if self.steps - self.done < length:
            return False
        if self.every is None:
            return True
        passed = self.done % self.every
        return passed == 0 if length % self.every == 0 else passed + length <= self.every

    def _check(self, before: Any, expected: list[Any], found: list[Any]) -> None:
        if (was := _container(before)) != (now := _container(self.state)):
            raise InputError(f"step {self.done} returns {now}, but was given {was}: return the state as it came")
        names, received = [name for name, _ in found], [name for name, _ in expected]
        if names != received:
            raise InputError(
                f"step {self.done} returns a state of {names}, but was given {received}: return the state as it came"
            )
        for (name, was), (_, now) in zip(expected, found, strict=True):
            if was != now and (isinstance(was, TensorLayout) or isinstance(now, TensorLayout)):
                raise InputError(
                    f"step {self.done} returns {now} {name and 'at ' + name + ' '}where it was given {was}: shapes, "
                    "dtypes and devices of the state must stay; cast or reshape in the step, or before the rollout"
                )
        self.varies = True


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The properties of a tensor that must stay from step to step."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"a tensor of shape {list(self.shape)}, {self.dtype}, on {self.device}"


def _list_layouts(state: Any) -> list[Any]:
    """List each leaf with its path: a tensor's fixed properties, a plain value's key, or the type of any other leaf."""
    if isinstance(state, torch.Tensor):
        return [("", TensorLayout(state.shape, state.dtype, state.device))]
    return [(name, _layout_of(leaf)) for name, leaf in pytree.list_named_leaves(state)]


def _layout_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return TensorLayout(leaf.shape, leaf.dtype, leaf.device)
    return plain_key(leaf) if is_plain(leaf) else type(leaf)


def _container(state: Any) -> str:
    return "a tensor" if isinstance(state, torch.Tensor) else f"a {type(state).__name__}"


def copies(state: Any) -> Any:
    """Copy every tensor, so that gradients flow through the copy.

    One tensor in two places stays one. Tensors that overlap do so in the copy: halves of a vector may be its views.
    Views that are differentiated, or mapped over by `torch.func`, are copied apart.
    """
    copied: dict[int, torch.Tensor] = {}
    for several in find_tied_tensors(state):
        copied |= zip(map(id, several), _copy_together(several), strict=True)

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copied:
            copied[id(tensor)] = tensor.clone()
        return copied[id(tensor)]

    return pytree.map_tensors(copy, state)


def find_tied_tensors(state: Any) -> list[list[torch.Tensor]]:
    """List groups of tensors in a state whose memory overlaps, each in the order of memory."""
    return find_overlaps([tensor for tensor in pytree.tensors(state) if _lies_plainly(tensor)])


def _lies_plainly(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists of the numbers in its memory alone: they have an address, and nothing else follows."""
    if not is_strided(tensor) or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        return False
    if forward_ad.unpack_dual(tensor).tangent is not None:
        return False
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # `torch.func` wraps tensors, and has no address for them
        return False
    return address != 0 and address % tensor.element_size() == 0  # on the meta device, all have address 0


def _copy_together(several: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the bytes that each reaches: they may lie in several storages, such as those of arrays of NumPy."""
    begin, end = several[0].data_ptr() // ALIGNMENT * ALIGNMENT, max(last for _, last in map(span, several))
    memory = torch.empty(end - begin, dtype=torch.uint8, device=several[0].device)
    for tensor in several:
        first, last = span(tensor)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        memory[first - begin : last - begin] = _view(
            tensor.untyped_storage(), torch.uint8, offset, (last - first,), (1,)
        )
    whole = memory.untyped_storage()
    return [
        _view(whole, tensor.dtype, (tensor.data_ptr() - begin) // tensor.element_size(), tensor.size(), tensor.stride())
        for tensor in several
    ]


def _view(
    memory: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, size, stride)
