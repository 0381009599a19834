"""How far a rollout is, and what its state looks like from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.realize.capture.loop import span
from torchwise.realize.signature import is_plain, is_strided, plain_key
from torchwise.workload import trees

ALIGNMENT = 16
"""Bytes of the largest number, complex128: memory copied from a multiple of them on has numbers where they may lie."""


@dataclass(slots=True)
class Course:
    """How far one rollout is.

    Attributes:
        state: the state now.
        steps: how many steps there are to take.
        every: steps between snapshots, or None.
        done: how many were taken.
        snapshots: copies of the state after each `every` steps.
        varies: whether something beside the tensors changed from step to step, such as a count kept as a number.
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
            InputError: it returns another structure, shape, dtype or device than it was given.
        """
        before = self.state
        expected = _looks_of(before)  # first, for a step may change its state in place
        self.state = step(before)
        self.done += 1
        if (found := _looks_of(self.state)) != expected:
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
        names, given = [name for name, _ in found], [name for name, _ in expected]
        if names != given:
            raise InputError(
                f"step {self.done} returns a state of {names}, but was given {given}: return the state as it came"
            )
        for (name, was), (_, now) in zip(expected, found, strict=True):
            if was != now and (isinstance(was, Look) or isinstance(now, Look)):
                raise InputError(
                    f"step {self.done} returns {now} {name and 'at ' + name + ' '}where it was given {was}: shapes, "
                    "dtypes and devices of the state must stay; cast or reshape in the step, or before the rollout"
                )
        self.varies = True


@dataclass(frozen=True, slots=True)
class Look:
    """What of a tensor must stay from step to step."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        return f"a tensor of shape {list(self.shape)}, {self.dtype}, on {self.device}"


def _looks_of(state: Any) -> list[Any]:
    """List each leaf with its path: of tensors what must stay, of plain values a key, of others the type."""
    if isinstance(state, torch.Tensor):
        return [("", Look(state.shape, state.dtype, state.device))]
    return [(name, _look(leaf)) for name, leaf in trees.named_leaves(state)]


def _look(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return Look(leaf.shape, leaf.dtype, leaf.device)
    return plain_key(leaf) if is_plain(leaf) else type(leaf)


def _container(state: Any) -> str:
    return "a tensor" if isinstance(state, torch.Tensor) else f"a {type(state).__name__}"


def copies(state: Any) -> Any:
    """Copy every tensor, through which gradients flow.

    One tensor in two places stays one, and what overlaps does so in the copy: halves of a vector may be its views.
    Views that require gradients are copied apart, as nothing may write to them in place.
    """
    copied = {id(tensor): tensor.clone() for tensor in trees.tensors(state)}
    for several in _overlapping(trees.tensors(state)):
        copied |= zip(map(id, several), _copied_together(several), strict=True)
    return trees.map_tensors(lambda tensor: copied[id(tensor)], state)


def _overlapping(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """List groups of two and more whose memory overlaps, each in the order of memory."""
    found: list[list[torch.Tensor]] = []
    end = 0
    for tensor in sorted({id(t): t for t in tensors if _lies_plainly(t)}.values(), key=torch.Tensor.data_ptr):
        first, last = span(tensor)
        if first < end:
            found[-1].append(tensor)
        else:
            found.append([tensor])
        end = max(end, last)
    return [several for several in found if len(several) > 1]


def _lies_plainly(tensor: torch.Tensor) -> bool:
    read_as_it_lies = is_strided(tensor) and not tensor.is_conj() and not tensor.is_neg()
    return read_as_it_lies and not tensor.requires_grad and tensor.numel() > 0


def _copied_together(several: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    starts = [int(tensor.storage_offset()) * tensor.element_size() for tensor in several]
    begin = starts[0] - starts[0] % ALIGNMENT
    length = max(map(span, several), key=itemgetter(1))[1] - several[0].data_ptr() + starts[0] - begin
    memory = _view(several[0].untyped_storage(), torch.uint8, begin, (length,), (1,)).clone().untyped_storage()
    return [
        _view(memory, tensor.dtype, (start - begin) // tensor.element_size(), tensor.size(), tensor.stride())
        for tensor, start in zip(several, starts, strict=True)
    ]


def _view(
    memory: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, size, stride)
