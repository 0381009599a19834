"""The tensors and values in an object that is an input of a captured call, such as the cache of a language model.

They are found once. Then compiled checks tell in a microsecond whether anything was written to the object since.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from operator import is_
from typing import Any

import torch

from torchwise._torch import native
from torchwise.compile.signature import is_plain, plain_key
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

Place = tuple[Any, Any]
"""A dict or a list, and a key of it."""

_CODE = (type, torch.nn.Module)
_SEALED = (tuple, set, frozenset, deque)
"""Types whose items a graph cannot replace."""
_MISSING = object()
STANDS_FOR = "\0an object of type "
"""Prefix of the string that replaces an object in the arguments."""


class ObjectContents:
    """The places of tensors and values in an object with its present structure.

    Attributes:
        form: the structure as text. Objects of one form have the same names and types in the same order.
        parts: the ids of the object and of the objects in it.
        text: the form, with the values other than tensors. It stands for the object in the signature of a call.
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
        holders = [holder for holder, _ in self._sizes]
        self._dicts = tuple(holder for holder in holders if isinstance(holder, dict))
        self._lists = [holder for holder in holders if not isinstance(holder, dict)]
        self._items: list[list[Any]] = []
        self._kind, self._own = type(thing), getattr(thing, "__dict__", None)
        parts = [part for _, _, part in self._parts]
        self._kinds = tuple((part, type(part)) for part in parts)
        self._owners = [(part, own) for part in parts if (own := getattr(part, "__dict__", None)) is not None]
        self._watch = native.make_watch(_do_not_know, is_boolean=True)  # which knows nothing of this, and frees it
        self.text = ""
        self._remember()

    def has_attributes_of(self, thing: Any) -> bool:
        """Whether the object still has the class and the attributes' dict of before. It is not kept, so it is given."""
        return type(thing) is self._kind and getattr(thing, "__dict__", None) is self._own

    def is_current(self) -> bool:
        """Whether every container is the one of before, with as many items, and tensors and values where they were."""
        if self._is_untouched():
            return True
        is_alike = self._is_alike()
        if is_alike:
            self._remember()
        return is_alike

    def assign(self, place: Place, tensor: torch.Tensor) -> None:
        """Put another tensor in the place of one of its tensors, as a replay does in place of the call."""
        is_known, (holder, key) = self._is_untouched(), place
        holder[key] = tensor
        if is_known:
            self._watch_writes()

    def _is_untouched(self) -> bool:
        """Whether nothing was written to any container, as compiled checks tell in a microsecond."""
        return (
            self._watch is not None
            and self._watch()
            and all(part.__dict__ is own for part, own in self._owners)
            and all(map(_has_items, self._lists, self._items))
        )

    def _remember(self) -> None:
        """Take the present values as those that are known."""
        self.text = f"{STANDS_FOR}{self.form} {self.values()}"
        self._watch_writes()

    def _watch_writes(self) -> None:
        self._items = [*map(list, self._lists)]
        if self._watch is not None:
            self._watch.reset(self._dicts, self._kinds, (), (), None, None)

    def _is_alike(self) -> bool:
        return (
            all(type(part) is kind for part, kind in self._kinds)
            and all(part.__dict__ is own for part, own in self._owners)
            and all(len(holder) == size for holder, size in self._sizes)
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


def _has_items(now: list[Any], items: list[Any]) -> bool:
    return len(now) == len(items) and all(map(is_, now, items))


def _do_not_know() -> bool:
    """Answer for compiled checks that saw a write: it may have changed something."""
    return False


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
