"""Objects that hold tensors, such as the cache of a language model, as inputs of a captured call.

A graph reads and writes tensors, not objects. So the tensors that hang in an object are given to the graph as inputs of
their own. Its other values are part of the signature. While the call is recorded, the graph's own tensors hang in their
places. Writes of the call to them go to the object's tensors. If it puts other tensors in their places, each replay
does so afterwards, too. A call that changes anything else of an object, such as a Python counter, is not captured: a
replay runs no Python.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchwise.compile.signature import is_plain, plain_key
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.module_state import State

Place = tuple[Any, Any]
"""A dict or a list, and a key of it."""

_CODE = (type, torch.nn.Module)
_STANDS_FOR = "\0an object of type "
"""Begins the text that stands in the place of an object."""


class Captured(Protocol):
    """A captured call of any scope."""

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a shorter way for calls of this signature."""
        ...

    def close(self) -> None:
        """Free the graphs and their memory."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call."""
        ...


class ObjectContents:
    """The places of tensors and values in an object, as it is built now.

    Raises:
        UnsupportedError: it holds something that cannot be told apart or put in place, such as a tensor in a tuple.
    """

    def __init__(self, thing: Any, path: str) -> None:
        self.tensors: list[Place] = []
        self.paths: list[str] = []
        self._values: list[Place] = []
        self._sizes: list[tuple[Any, int]] = []
        waiting, seen = [(path, thing)], set[int]()
        while waiting:
            found, holder = waiting.pop()
            if id(holder) not in seen:
                seen.add(id(holder))
                waiting += self._scan_object(found, holder)

    def is_current(self) -> bool:
        """Whether every container still holds as many items as before."""
        return all(len(holder) == size for holder, size in self._sizes)

    def values(self) -> tuple[Any, ...]:
        """Return the object's values other than tensors, to compare."""
        return tuple(_key(holder[key]) for holder, key in self._values)

    def now(self) -> list[torch.Tensor]:
        """Return the tensors that hang in the object."""
        return [holder[key] for holder, key in self.tensors]

    def _scan_object(self, path: str, thing: Any) -> list[tuple[str, Any]]:
        holder = thing if isinstance(thing, (dict, list)) else getattr(thing, "__dict__", None)
        if isinstance(thing, (tuple, set, frozenset)) or holder is None:
            raise UnsupportedError(f"{path} is of type {type(thing).__name__}, which a graph cannot look into")
        self._sizes.append((holder, len(holder)))
        further = []
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            name = f"{path}[{key!r}]" if holder is thing else f"{path}.{key}"
            if isinstance(value, torch.Tensor):
                self.tensors.append((holder, key))
                self.paths.append(name)
            elif _key(value) is not None:
                self._values.append((holder, key))
            else:
                further.append((name, value))
        return further


def _key(value: Any) -> Any:
    """Return the key by which a value is compared, or None for a value that has to be looked into."""
    if is_plain(value):
        return plain_key(value) if type(value) in pytree.PLAIN else value
    if isinstance(value, (*_CODE, enum.Enum)) or callable(value):
        return ("object", id(value))
    if isinstance(value, tuple) and all(is_plain(item) for item in value):
        return ("tuple", value)
    return None


@dataclass(slots=True)
class _Object:
    """An object given to a call, and the places of its tensors."""

    thing: Any
    held: ObjectContents


class WithObjects:
    """A captured call that also accepts objects.

    Args:
        call: the callable to capture.
        capture: makes a captured call of the callable that is captured in its place.
    """

    def __init__(self, call: Callable[..., Any], capture: Callable[[Callable[..., Any]], Captured]) -> None:
        self._call = call
        self._captured = capture(self._functional)
        self._known: dict[int, tuple[weakref.ref[Any], ObjectContents]] = {}
        self._given: list[_Object] = []
        self._lock = threading.RLock()
        self.close = self._captured.close

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the call does, by replay."""
        given: list[_Object] = []
        flat_args, flat_kwargs = self._flat((args, kwargs), given)
        if not given:
            return self._captured(*args, **kwargs)
        tensors = [one.held.now() for one in given]
        with self._lock:
            self._given = given
            try:
                outputs, moved = self._captured(tensors, *flat_args, **flat_kwargs)
            finally:
                self._given = []
        for place, tensor in moved.items():
            holder, key = _place(given, place)
            holder[key] = tensor
        return outputs

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a shorter way for calls of this signature."""
        given: list[_Object] = []
        self._flat((args, dict(kwargs)), given)
        return self if given else self._captured.get_bypass(args, kwargs)

    def _flat(self, tree: Any, given: list[_Object]) -> Any:
        """Put text in place of objects: the type of each, and its values other than tensors."""
        kind = type(tree)
        if kind is torch.Tensor or kind in pytree.PLAIN:
            return tree
        if kind is tuple or kind is list:
            return kind([self._flat(item, given) for item in tree])
        if kind is dict:
            return {key: self._flat(item, given) for key, item in tree.items()}
        if not pytree.is_leaf(tree) or isinstance(tree, torch.Tensor) or is_plain(tree):
            return tree
        given.append(_Object(tree, self._inspect_object(tree)))
        return f"{_STANDS_FOR}{kind.__qualname__} {id(kind)} {given[-1].held.values()}"

    def _inspect_object(self, thing: Any) -> ObjectContents:
        """Look into an object, unless it is built as on the last look."""
        key = id(thing)
        reference, known = self._known.get(key, (None, None))
        if reference is not None and known is not None and reference() is thing and known.is_current():
            return known
        held = ObjectContents(thing, type(thing).__qualname__)
        with contextlib.suppress(TypeError):  # it cannot be referred to weakly, and is looked into each time
            self._known[key] = weakref.ref(thing, lambda _: self._known.pop(key, None)), held
        return held

    def _functional(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the graph's own tensors in their places, while it is warmed up and recorded."""
        given = self._given
        if not given or not args or not isinstance(args[0], list):
            return self._call(*args, **kwargs)
        tensors, *rest = args
        kept = [one.held.now() for one in given]
        before = [one.held.values() for one in given]
        # The recorded call was warmed up before, and a copy that is made meanwhile would be replayed with it.
        is_recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        state = None if is_recorded else State({"": [one.thing for one in given]})
        try:
            _hang(given, tensors)
            args, kwargs = _full((tuple(rest), kwargs), given)
            outputs = self._call(*args, **kwargs)
            _refuse_changes(given, before)
            after = [one.held.now() for one in given]
            pairs = [(a, b) for old, new in zip(tensors, after, strict=True) for a, b in zip(old, new, strict=True)]
            _refuse_other_forms(given, pairs)
        except BaseException:  # raised again: an answer in its place must begin from the state before
            if state is None:
                _hang(given, kept)
            else:
                state.restore()
            raise
        _hang(given, kept)
        return outputs, {place: new for place, (old, new) in enumerate(pairs) if new is not old}


def _refuse_changes(given: list[_Object], before: list[tuple[Any, ...]]) -> None:
    """Refuse a call that changes a value that is no tensor, or the structure of an object.

    Raises:
        UnsupportedError: naming the object.
    """
    for one, values in zip(given, before, strict=True):
        kind = type(one.thing).__qualname__
        if not one.held.is_current() or one.held.values() != values:
            raise UnsupportedError(f"the call changes what is no tensor in an input of type {kind}, as no replay does")


def _refuse_other_forms(given: list[_Object], pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Refuse a call that puts a tensor of another form in a tensor's place: no two calls would be alike.

    Raises:
        UnsupportedError: naming the place.
    """
    paths = [path for one in given for path in one.held.paths]
    for path, (old, new) in zip(paths, pairs, strict=True):
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            raise UnsupportedError(
                f"the call makes {path} of shape {tuple(new.shape)} from {tuple(old.shape)}, so that each call would "
                "be captured anew: give it its full size from the start, as a static cache has it"
            )


def _hang(given: list[_Object], tensors: list[list[torch.Tensor]]) -> None:
    for one, several in zip(given, tensors, strict=True):
        for (holder, key), tensor in zip(one.held.tensors, several, strict=True):
            holder[key] = tensor


def _place(given: list[_Object], number: int) -> Place:
    return [place for one in given for place in one.held.tensors][number]


def _full(tree: Any, given: list[_Object]) -> Any:
    """Put the objects back in place of the texts that stand for them."""
    waiting = iter(given)

    def fill(leaf: Any) -> Any:
        return next(waiting).thing if isinstance(leaf, str) and leaf.startswith(_STANDS_FOR) else leaf

    return _fill_leaves(tree, fill)


def _fill_leaves(tree: Any, fill: Callable[[Any], Any]) -> Any:
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([_fill_leaves(item, fill) for item in tree])
    return {key: _fill_leaves(item, fill) for key, item in tree.items()} if kind is dict else fill(tree)
