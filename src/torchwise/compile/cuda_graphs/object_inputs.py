"""Objects that hold tensors, such as the cache of a language model, as inputs of a captured call.

A graph reads and writes tensors, not objects. So the tensors in an object become inputs of the graph. Its other values,
its structure and the types in it are part of the signature. While the call is recorded, the object holds the graph's
own tensors instead. Writes of the call to them are copied to the object's tensors. If the call assigns other tensors,
each replay does so, too. A call that changes anything else of an object, such as a Python counter, is not captured, as
a replay runs no Python.

An empty object has places for tensors, and no tensors yet: the cache before its first prompt. A call that fills it runs
as it is, and those after it are captured. A call may return the object. It then returns that of each caller. A call
with objects that share parts runs as it is, too: what it writes to one, it may read from another.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.compile.cuda_graphs import CudaGraph
from torchwise.compile.signature import is_plain, plain_key
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.module_state import State

Place = tuple[Any, Any]
"""A dict or a list, and a key of it."""

_CODE = (type, torch.nn.Module)
_SEALED = (tuple, set, frozenset, deque)
"""Types whose items a graph cannot replace."""
_MISSING = object()
_STANDS_FOR = "\0an object of type "
"""Prefix of the string that replaces an object in the arguments."""


class ObjectContents:
    """The places of tensors and values in an object with its present structure.

    Attributes:
        form: the structure as text. Objects of one form have the same names and types in the same order.
        parts: the ids of the object and of the objects in it.
        leads_back: whether the object is reached from what it holds, which would keep it alive.

    Raises:
        UnsupportedError: it holds a value that cannot be compared or replaced, such as a tensor in a tuple.
    """

    def __init__(self, thing: Any, path: str) -> None:
        self.tensors: list[Place] = []
        self.paths: list[str] = []
        self.leads_back = False
        self._values: list[tuple[Any, Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._parts: list[tuple[Any, Any, Any]] = []
        self._names: list[str] = []
        pending, paths = [(path, thing)], dict[int, str]()
        while pending:
            part_path, part = pending.pop()
            self._names.append(f"{part_path} {type(part).__qualname__} {id(type(part))}")
            if id(part) in paths:
                self._names.append(f"is {paths[id(part)]}")
                self.leads_back |= part is thing
            else:
                paths[id(part)] = part_path
                pending += self._scan_object(part_path, part, thing)
        self.form, self.parts = "\n".join(self._names), frozenset(paths)

    def is_current(self) -> bool:
        """Whether every container is the one of before, with as many items, and tensors and values where they were."""
        return (
            all(len(holder) == size for holder, size in self._sizes)
            and all(_get(holder, key) is part for holder, key, part in self._parts)
            and all(isinstance(_get(holder, key), torch.Tensor) for holder, key in self.tensors)
            and all((now := _get(h, key)) is value or _key(now) is not None for h, key, value in self._values)
        )

    @property
    def is_empty(self) -> bool:
        """Whether the object has places for tensors, and at most numbers in tensors yet, such as a length of 0."""
        has_places = any(size == 0 for _, size in self._sizes) or any(h[k] is None for h, k, _ in self._values)
        return has_places and all(tensor.numel() <= 1 for tensor in self.now())

    def values(self) -> tuple[Any, ...]:
        """Return the object's values other than tensors, to compare."""
        return tuple(_key(holder[key]) for holder, key, _ in self._values)

    def now(self) -> list[torch.Tensor]:
        """Return the present tensors of the object."""
        return [holder[key] for holder, key in self.tensors]

    def _scan_object(self, path: str, thing: Any, root: Any) -> list[tuple[str, Any]]:
        holders: list[tuple[str, Any]] = [("item", thing)] if isinstance(thing, (dict, list)) else []
        attributes = getattr(thing, "__dict__", None)
        if isinstance(thing, _SEALED) or (attributes is None and not holders) or _has_slots(type(thing)):
            raise UnsupportedError(f"{path} is of type {type(thing).__name__}, whose contents a graph cannot replace")
        if attributes or not holders:
            holders.append(("attribute", attributes))
        further = []
        for kind, holder in holders:
            self._sizes.append((holder, len(holder)))
            for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
                name = f"{path}[{key!r}]" if kind == "item" else f"{path}.{key}"
                if isinstance(value, torch.Tensor):
                    self.tensors.append((holder, key))
                    self.paths.append(name)
                    self._names.append(f"tensor {name}")
                elif _key(value) is not None:
                    self._values.append((holder, key, value))
                    self._names.append(f"value {name}")
                    self.leads_back |= getattr(value, "__self__", None) is root  # a method
                else:
                    self._parts.append((holder, key, value))
                    further.append((name, value))
        return further


def _has_slots(kind: type) -> bool:
    """Whether objects of a type hold contents outside their `__dict__`. The types of Python itself are known."""
    return any(
        isinstance(member, types.MemberDescriptorType)
        for base in kind.__mro__
        if base.__module__ not in ("builtins", "collections", "types")
        for member in vars(base).values()
    )


def _get(holder: Any, key: Any) -> Any:
    return holder.get(key, _MISSING) if isinstance(holder, dict) else holder[key]


def _key(value: Any) -> Any:
    """Return the key by which a value is compared, or None for a value whose contents must be compared."""
    if is_plain(value):
        return plain_key(value) if type(value) in pytree.PLAIN else value
    if isinstance(value, (*_CODE, enum.Enum)) or callable(value):
        return ("object", id(value))
    if isinstance(value, tuple) and all(is_plain(item) for item in value):
        return ("tuple", value)
    return None


@dataclass(slots=True)
class _Object:
    """An object among a call's arguments, and the places of its tensors."""

    thing: Any
    contents: ObjectContents


class _Returned(int):
    """Stands for the object of a number among the inputs where a call returns it, as a leaf that holds nothing."""


class WithObjects:
    """A captured call that also accepts objects.

    Args:
        call: the callable.
        capture: captures a callable that takes the tensors in the objects.
        borrow: whether it returns memory that the next call overwrites. An object gets its own memory all the same.
    """

    def __init__(
        self, call: Callable[..., Any], capture: Callable[[Callable[..., Any]], CudaGraph], *, borrow: bool = False
    ) -> None:
        self._call, self._borrow = call, borrow
        self._captured = capture(self._functional)
        self._known: dict[int, tuple[weakref.ref[Any], ObjectContents]] = {}
        self._objects: list[_Object] = []
        self._never_filled: set[type] = set()
        self._lock = threading.RLock()
        self.close = self._captured.close

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the call does, by replay."""
        objects: list[_Object] = []
        flat_args, flat_kwargs = self._flat((args, kwargs), objects)
        if not objects:
            return self._captured(*args, **kwargs)
        if _share_parts(objects):
            return self._call(*args, **kwargs)
        if any(one.contents.is_empty and type(one.thing) not in self._never_filled for one in objects):
            return self._fill_objects(objects, args, kwargs)
        tensors = [one.contents.now() for one in objects]
        with self._lock:
            outer, self._objects = self._objects, objects  # those of a call around this one, if the model calls itself
            try:
                outputs, moved, returns_objects = self._captured(tensors, *flat_args, **flat_kwargs)
                for place, tensor in moved.items():
                    holder, key = _place(objects, place)
                    holder[key] = tensor.clone() if self._borrow else tensor
            finally:
                self._objects = outer
        if not returns_objects:
            return outputs
        return pytree.map_leaves(lambda leaf: objects[leaf].thing if type(leaf) is _Returned else leaf, outputs)

    def _fill_objects(self, objects: list[_Object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Answer by the call as it is, and learn which objects stay empty, such as settings without a tensor."""
        answer = self._call(*args, **kwargs)
        for thing in [one.thing for one in objects if one.contents.is_empty]:
            if ObjectContents(thing, type(thing).__qualname__).is_empty:
                self._never_filled.add(type(thing))
        return answer

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a faster callable for calls of this signature."""
        objects: list[_Object] = []
        self._flat((args, dict(kwargs)), objects)
        return self if objects else self._captured.get_bypass(args, kwargs)

    def _flat(self, tree: Any, objects: list[_Object]) -> Any:
        """Replace objects by strings with the form of each, and its values other than tensors."""
        kind = type(tree)
        if kind is torch.Tensor or kind in pytree.PLAIN:
            return tree
        if kind is tuple or kind is list:
            return kind([self._flat(item, objects) for item in tree])
        if kind is dict:
            return {key: self._flat(item, objects) for key, item in tree.items()}
        if not pytree.is_leaf(tree) or isinstance(tree, torch.Tensor) or is_plain(tree):
            return tree
        objects.append(_Object(tree, self._inspect_object(tree)))
        return f"{_STANDS_FOR}{objects[-1].contents.form} {objects[-1].contents.values()}"

    def _inspect_object(self, thing: Any) -> ObjectContents:
        """Return the contents of an object, which are kept while its structure stays the same."""
        key = id(thing)
        reference, known = self._known.get(key, (None, None))
        if reference is not None and known is not None and reference() is thing and known.is_current():
            return known
        contents = ObjectContents(thing, type(thing).__qualname__)
        if contents.leads_back:  # kept contents would keep it alive: it is inspected each time
            self._known.pop(key, None)
            return contents
        with contextlib.suppress(TypeError):  # so is an object without weak references
            self._known[key] = weakref.ref(thing, lambda _: self._known.pop(key, None)), contents
        return contents

    def _functional(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the graph's own tensors in the objects, while it is warmed up and recorded."""
        objects = self._objects
        if not objects or not args or not isinstance(args[0], list):
            return self._call(*args, **kwargs)
        tensors, *rest = args
        kept = [one.contents.now() for one in objects]
        before = [one.contents.values() for one in objects]
        # No copy of the state during a recording: it would be replayed, too. The warm-up checked the call before.
        is_recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        state = None if is_recorded else State({"": [one.thing for one in objects]})
        try:
            _assign_tensors(objects, tensors)
            args, kwargs = _full((tuple(rest), kwargs), objects)
            outputs = self._call(*args, **kwargs)
            _refuse_changes(objects, before)
            after = [one.contents.now() for one in objects]
            pairs = [(a, b) for old, new in zip(tensors, after, strict=True) for a, b in zip(old, new, strict=True)]
            _refuse_other_forms(objects, pairs)
        except BaseException:  # raised again: another answer must begin from the state before
            if state is None:
                _assign_tensors(objects, kept)
            else:
                state.restore()
            raise
        _assign_tensors(objects, kept)
        numbers = {id(one.thing): _Returned(number) for number, one in enumerate(objects)}
        returned = [leaf for _, leaf in pytree.list_named_leaves(outputs) if id(leaf) in numbers]
        if returned:
            outputs = pytree.map_leaves(lambda leaf: numbers.get(id(leaf), leaf), outputs)
        return outputs, {place: new for place, (old, new) in enumerate(pairs) if new is not old}, bool(returned)


def _share_parts(objects: list[_Object]) -> bool:
    return any(one.contents.parts & other.contents.parts for one, other in itertools.combinations(objects, 2))


def _refuse_changes(objects: list[_Object], before: list[tuple[Any, ...]]) -> None:
    """Refuse a call that changes a value other than a tensor, or the structure of an object."""
    for one, values in zip(objects, before, strict=True):
        kind = type(one.thing).__qualname__
        if not one.contents.is_current() or one.contents.values() != values:
            raise UnsupportedError(
                f"the call changes more than tensors in an input of type {kind}, but a replay would not do so"
            )


def _refuse_other_forms(objects: list[_Object], pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Refuse a call that replaces a tensor by one of another shape, dtype or device: each call would differ."""
    paths = [path for one in objects for path in one.contents.paths]
    for path, (old, new) in zip(paths, pairs, strict=True):
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            raise UnsupportedError(
                f"the call changes {path} from shape {tuple(old.shape)} to {tuple(new.shape)}, so each call would need "
                "a new capture: allocate its full size at the start, as a static cache does"
            )


def _assign_tensors(objects: list[_Object], tensors: list[list[torch.Tensor]]) -> None:
    for one, several in zip(objects, tensors, strict=True):
        for (holder, key), tensor in zip(one.contents.tensors, several, strict=True):
            holder[key] = tensor


def _place(objects: list[_Object], number: int) -> Place:
    return [place for one in objects for place in one.contents.tensors][number]


def _full(tree: Any, objects: list[_Object]) -> Any:
    """Put the objects back in place of the strings that replaced them."""
    remaining = iter(objects)

    def fill(tree: Any) -> Any:
        kind = type(tree)
        if kind is tuple or kind is list:
            return kind([fill(item) for item in tree])
        if kind is dict:
            return {key: fill(item) for key, item in tree.items()}
        return next(remaining).thing if isinstance(tree, str) and tree.startswith(_STANDS_FOR) else tree

    return fill(tree)
