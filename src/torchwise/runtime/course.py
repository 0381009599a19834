"""How far a rollout is, and what its state looks like from step to step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.realize.signature import is_plain, plain_key
from torchwise.workload import trees


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
    """Copy every tensor, through which gradients flow."""
    return trees.map_tensors(torch.Tensor.clone, state)
