"""Find, keep, compare and restore all state that a call may change besides its outputs.

State can be in buffers and attributes of modules. Lists, dicts and objects that these hold, or that a call receives,
may have it (such as the cache of a language model). So may closures, global variables that a function names, and
classes. The search follows references from the callable and its inputs. A comparison before and after finds changes.

Everything is restored in its own place: the values of a tensor in its memory, whose address other code may know, and
the items of a list in that list. Tensors that share memory still share it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from torchwise._torch.dispatch import copy_each
from torchwise.workload import pytree
from torchwise.workload.state_places import MAX_KEPT, MISSING, Place, TensorPlace, holds_same
from torchwise.workload.state_walk import contents_of

GONE = "gone"
"""The entry of `State.changes` for an object that was removed."""


class State:
    """The objects reachable from some things, with their values at construction.

    Args:
        things: the objects to start from, by their names in messages ("" for the model itself).
        without: objects that other code restores. They are not searched.

    Attributes:
        window: the largest `maxlen` of the deques of bounded length, or 0 if there is none.
    """

    def __init__(self, things: Mapping[str, Any], without: Iterable[Any] = ()) -> None:
        self._things, self._without = things, list(without)
        self._places: list[Place] = []
        self.window = 0
        leaves = self._explore(self._places)
        tensors = {id(place.tensor): place for place in self._places if isinstance(place, TensorPlace)}
        left = MAX_KEPT
        for place in tensors.values():
            left = place.keep(left)
        for other in self._places:
            if not isinstance(other, TensorPlace):
                other.keep()
        self._leaves = {path: tensors.get(id(leaf)) or _copy_value(leaf) for path, leaf in leaves.items()}

    @classmethod
    def from_call(cls, call: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> State:
        """Keep the state of a callable, and of the arguments of a call."""
        return cls({"input ": (args, dict(kwargs or {})), "": call})

    def changes(self) -> dict[str, Any]:
        """Return the differences by path: the very tensor, array or value that is there now, or `GONE`."""
        now, before = self._explore(), self._leaves
        found = {path: leaf for path, leaf in now.items() if not _is_same(before.get(path, MISSING), leaf)}
        return {**found, **{path: GONE for path in before if path not in now}}

    def find_grown(self) -> list[str]:
        """List the paths of tensors that have another shape than they had."""
        now = self._explore()
        kept = {path: place for path, place in self._leaves.items() if isinstance(place, TensorPlace)}
        return [path for path, place in kept.items() if getattr(now.get(path), "shape", place.shape) != place.shape]

    def leaves(self) -> dict[str, Any]:
        """Return all tensors and values that there are now, by path."""
        return self._explore()

    def has_changed(self) -> bool:
        """Whether anything differs from the kept state, objects without a comparable value (iterators) included."""
        return any(place.has_changed() for place in self._places)

    def restore(self) -> None:
        """Restore changed state and write to nothing else, so that version counters stay.

        Raises:
            WorkloadError: a change cannot be restored, such as an advanced generator. Everything else is restored.
        """
        failed: Exception | None = None
        with torch.no_grad():
            for place in self._places:
                try:
                    if place.has_changed():
                        place.put_back()
                except Exception as error:  # raised again when all else is put back: things are written in any way
                    failed = failed or error
        if failed is not None:
            raise failed

    def restore_values(self) -> None:
        """Restore the values of the tensors that are still in their memory, and no other change."""
        with torch.no_grad():
            for place in self._places:
                if isinstance(place, TensorPlace) and place.is_kept and not place.has_moved() and place.has_changed():
                    place.put_back()

    def make_restorer(self) -> Callable[[], None]:
        """Return a function that restores only the places that have changed so far.

        It is for timed calls: each begins from the same state, and restoring it takes little time.
        """
        changed = [place for place in self._places if place.has_changed()]
        tensors = [place for place in changed if isinstance(place, TensorPlace)]
        batches = [batch for place in tensors if (batch := place.batch()) is not None]
        others = [place for place in changed if not isinstance(place, TensorPlace) or place.batch() is None]
        into, values = [pair[0] for pair in batches], [pair[1] for pair in batches]

        def put_back() -> None:
            with torch.no_grad(), torch.inference_mode(any(tensor.is_inference() for tensor in into)):
                for place in others:
                    place.put_back()
                for place in tensors:
                    place.put_back_memory()
                copy_each(into, values)

        return put_back

    def _explore(self, places: list[Place] | None = None) -> dict[str, Any]:
        """Follow all references. Return tensors and values by path, and containers by the path that led there first.

        A tensor is listed under each of its paths: a compiler may make one of two that are equal, or two of one.
        `places` receives every place that a call may write to.
        """
        leaves: dict[str, Any] = {}
        without = {id(thing) for thing in self._without}
        visited = {id(thing): thing for thing in self._without}  # held, so that no other thing takes the address of one
        pending = [*reversed([*self._things.items()])]
        while pending:
            path, thing = pending.pop()
            if type(thing) in pytree.PLAIN:
                leaves[path] = thing
            elif id(thing) in visited and isinstance(thing, torch.Tensor):
                if id(thing) not in without:
                    leaves[path] = thing
            elif id(thing) not in visited:
                visited[id(thing)] = thing
                found = contents_of(path, thing)
                if places is not None:
                    places += found.places
                    self.window = max(self.window, getattr(thing, "maxlen", None) or 0 if type(thing) is deque else 0)
                if found.leaf is not MISSING:
                    leaves[path] = found.leaf
                pending += reversed(found.children)
        return leaves


@contextmanager
def kept_state(call: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Iterator[State]:
    """Restore the state of a callable, and of its arguments, on exit."""
    state = State.from_call(call, args, kwargs)
    try:
        yield state
    finally:
        state.restore()


def from_one_state(
    call: Callable[..., Any], original: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return a call that begins from the present state each time, for a model whose calls change its state.

    The call is of the model itself, or of a plan's form of it. The arguments may hold state, too.
    """
    state: State | None = State.from_call(original, args, kwargs)
    put_back: Callable[[], None] | None = None

    def restart() -> Any:
        nonlocal state, put_back
        if put_back is not None:
            put_back()
        elif state is not None and state.has_changed():  # by other calls of the model since
            state.restore()
        answer = call(*args, **kwargs)
        if state is not None:
            put_back, state = state.make_restorer(), None
        return answer

    return restart


class Turns:
    """The calls that a model's state still takes before it starts over: those of all that go on from it together."""

    def __init__(self) -> None:
        self.left = math.inf
        self._start: State | None = None

    def start_over(self, original: Any) -> None:
        """Give the model the state that it had at the first such call."""
        if self._start is None:
            self._start = State.from_call(original)
        elif self._start.has_changed():
            self._start.restore()


def make_continuing_call(
    call: Callable[..., Any],
    original: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    turns: Turns,
    most: float = math.inf,
) -> Callable[[], Any]:
    """Return a call that advances from state to state as a program does, and starts over if it cannot continue.

    It cannot continue if a cache is full, for example, or after `most` calls of all that share the turns. The other
    arguments are as for `from_one_state`.
    """
    state = State.from_call(original, args, kwargs)
    left = turns.left = most

    def go_on() -> Any:
        nonlocal left
        if min(left, turns.left) <= 0:
            left = turns.left = most
            if state.has_changed():
                state.restore()
        left, turns.left = left - 1, turns.left - 1
        try:
            return call(*args, **kwargs)
        except Exception:  # a model may raise anything, and errors of the second attempt are its caller's affair
            if not state.has_changed():
                raise
            state.restore()
            return call(*args, **kwargs)

    return go_on


def preserve_generators(device: str) -> AbstractContextManager[None]:
    """Restore PyTorch's random generators afterwards: of the CPU, and for "cuda" of the current GPU."""
    return torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else [])


def _copy_value(leaf: Any) -> Any:
    """Copy values that change in place: tensors and arrays."""
    if isinstance(leaf, torch.Tensor):
        return pytree.copy_of(leaf)
    return leaf.copy() if hasattr(leaf, "__array__") else leaf


def _is_same(one: Any, other: Any) -> bool:
    import numpy

    if isinstance(one, TensorPlace):
        return isinstance(other, torch.Tensor) and one.equals(other)
    if isinstance(one, numpy.ndarray) and isinstance(other, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return holds_same(one, other)
