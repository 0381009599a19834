"""The places that can hold state: how to keep, compare and restore their contents."""

from __future__ import annotations

import copy
import itertools
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import WorkloadError
from torchwise.workload import pytree
from torchwise.workload.layouts import count_writes, size_of

MAX_KEPT = 2**28
"""Bytes of parameters whose values are kept: a write to one beyond them is noticed, and cannot be put back."""
MISSING = object()
"""Stands for a name that is not bound, and for the value of an object that has none to compare by."""
_PLAIN_DICTS = (dict, OrderedDict, defaultdict)
"""Mappings whose methods are those of a dict. Those of a program's own class may do anything."""
_ITERATORS = (itertools.count, itertools.cycle, itertools.repeat)
"""Iterators that nothing sets, and that are put back by a copy in their place."""


class TensorPlace:
    """A tensor: its position and layout in memory, and its values once they are kept."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._path = path
        self._memory = tensor.detach()
        self._version = count_writes(tensor)
        self._values: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape that it had."""
        return self._memory.shape

    def keep(self, parameters: int) -> int:
        """Keep its values unless it is a parameter of more than `parameters` bytes. Return the bytes left of these."""
        left = parameters - size_of(self.tensor) if isinstance(self.tensor, torch.nn.Parameter) else parameters
        if left < 0:
            return parameters
        self._values = pytree.copy_of(self.tensor)
        return left

    @property
    def is_kept(self) -> bool:
        """Whether its values are kept."""
        return self._values is not None

    def has_changed(self) -> bool:
        """Whether it was moved, or has other strides or values."""
        return self.has_moved() or not self.equals(self.tensor)

    def equals(self, other: torch.Tensor) -> bool:
        """Whether another tensor has the values that were kept."""
        if self._values is not None:
            return pytree.equal(other, self._values)
        return other is self.tensor and count_writes(other) == self._version

    def put_back(self) -> None:
        """Give it its memory and its values.

        Raises:
            WorkloadError: the values were too many to be kept.
        """
        self.put_back_memory()
        if self._values is None:
            raise WorkloadError(
                f"the call writes to parameter {self._path}, but parameters are restored only up to {MAX_KEPT} bytes "
                "together: register it as a buffer"
            )

        with torch.inference_mode(torch.is_inference_mode_enabled() or self.tensor.is_inference()):
            pytree.write(self.tensor, self._values)

    def put_back_memory(self) -> None:
        """Give it its memory."""
        if self.has_moved():
            self.tensor.data = self._memory

    def batch(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return its memory and the values that belong there, as one copy of many tensors takes them, or None."""
        if self._values is None or not _is_strided(self._memory):
            return None
        return pytree.base_of(self._memory), pytree.base_of(self._values)

    def has_moved(self) -> bool:
        """Whether its memory or its strides changed."""
        now, then = self.tensor, self._memory
        if now.is_nested:
            return False
        if now.layout is not then.layout or now.dtype is not then.dtype or now.shape != then.shape:
            return True
        return _is_strided(now) and (now.data_ptr(), now.stride()) != (then.data_ptr(), then.stride())


class ContentPlace:
    """Any other place that changes in place, with functions that read and write its contents.

    `read` returns the present contents, in a container of their own. They are kept when `keep` is called.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read, self._write = read, write
        self._kept: Any = None

    def keep(self) -> None:
        """Keep its present contents."""
        self._kept = self._read()

    def has_changed(self) -> bool:
        """Whether it holds something else."""
        return not holds_same(self._read(), self._kept)

    def put_back(self) -> None:
        """Restore its contents.

        Raises:
            WorkloadError: they cannot come again, such as those of an iterator. The message names it.
        """
        self._write(self._kept)


def holds_same(one: Any, other: Any) -> bool:
    """Whether two readings of a place hold the very same objects, or equal plain values.

    Contents at a deeper level have places of their own: two lists that hold the same are two lists.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(_is_same, one, other))
    if kind is dict:
        return list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
    return _is_same(one, other)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or not (kind in pytree.PLAIN or kind in (bytes, frozenset, _Copied)):
        return False
    return bool(one == other or (one != one and other != other))  # NaN is the same


class ItemsPlace:
    """The items of a mapping, such as the attributes of an object, but those under some names.

    A model has thousands, most of them empty dicts of hooks, so that their work is in C where it can be.
    """

    __slots__ = ("_items", "_kept", "_without")

    def __init__(self, items: Any, without: frozenset[str] = frozenset()) -> None:
        self._items, self._without = items, without
        self._kept: dict[Any, Any] = {}

    def keep(self) -> None:
        """Keep its present items."""
        self._kept = self._read()

    def has_changed(self) -> bool:
        """Whether it holds other items, or in another order."""
        items, kept = self._items, self._kept
        if type(items) in _PLAIN_DICTS and len(items) == len(kept):
            has_same_keys = all(map(operator.is_, items, kept))
            if has_same_keys and all(map(operator.is_, items.values(), kept.values())):
                return False
        return not holds_same(self._read(), kept)

    def put_back(self) -> None:
        """Restore its items."""
        items, kept = self._items, self._kept
        there = [key for key in items if key not in self._without]
        is_ordered = [key for key in there if key in kept] == [key for key in kept if key in items]
        for key in there:
            if key not in kept or not is_ordered:
                del items[key]
        for key, value in kept.items():
            value = copy.copy(value.thing) if isinstance(value, _Copied) else value
            if key not in items or items[key] is not value:
                items[key] = value

    def _read(self) -> dict[Any, Any]:
        items, without = self._items, self._without
        if type(items) in _PLAIN_DICTS and not items:
            return {}
        return {key: _copy_iterator(value) for key, value in items.items() if key not in without}


class SlotPlace(ContentPlace):
    """The value of one name, which `get` returns unless it is not bound. `put` unbinds it for `MISSING`."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        def read() -> list[Any]:
            try:
                return [get()]
            except (AttributeError, KeyError, ValueError):  # an object's, a mapping's, a cell's
                return [MISSING]

        super().__init__(read, lambda kept: put(kept[0]))


Place = TensorPlace | ContentPlace | ItemsPlace


@dataclass(frozen=True, slots=True)
class _Copied:
    """A copy of an iterator, which is used up by nobody."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Copied) and repr(self.thing) == repr(other.thing)

    def __hash__(self) -> int:
        return hash(repr(self.thing))


def _copy_iterator(value: Any) -> Any:
    return _Copied(copy.copy(value)) if type(value) in _ITERATORS else value


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
