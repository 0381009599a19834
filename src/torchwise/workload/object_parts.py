"""Describe one object in a tree: its class and the names of its parts, and the parts themselves.

This runs on every call, so a class is examined once. The parts are read each time, as any attribute may change.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import UserDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from torchwise._torch import pytree as _pytree


class Parts(NamedTuple):
    """An object's description, and its parts in order."""

    key: Any
    values: Sequence[Any]


def describe(thing: Any) -> Parts:
    """Describe a container, a dataclass or a kind of dict. Any other object has its class for a key, and no parts.

    A class that is registered with PyTorch is taken apart by it.
    """
    kind: Any = type(thing)
    if kind in _pytree.SUPPORTED_NODES:
        values, spec = _pytree.tree_flatten(thing, is_leaf=lambda part: part is not thing)
        return Parts(spec, values)
    return _find_reader(kind)(thing)


def is_opaque(thing: Any) -> bool:
    """Return whether an object has its class alone for a description, whatever happens to it."""
    kind = type(thing)
    walks = issubclass(kind, (tuple, dict, UserDict)) or dataclasses.is_dataclass(kind)
    return not walks and kind not in _pytree.SUPPORTED_NODES


Read = Callable[[Any], Parts]
_NONE: tuple[Any, ...] = ()


@functools.lru_cache(maxsize=1024)
def _find_reader(kind: Any) -> Read:
    """Return the function that describes the instances of a class that PyTorch does not know."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda thing: Parts((kind, len(thing)), tuple(thing))
    if dataclasses.is_dataclass(kind):
        return _make_field_reader(kind)
    if issubclass(kind, (dict, UserDict)):
        return functools.partial(_read_items, kind)
    opaque = Parts(kind, _NONE)
    return lambda _: opaque


def _make_field_reader(kind: Any) -> Read:
    names = tuple(field.name for field in dataclasses.fields(kind))
    if not names:
        return lambda _: Parts((kind, names), _NONE)
    get, key = attrgetter(*names), (kind, names)
    get_all: Callable[[Any], tuple[Any, ...]] = get if len(names) > 1 else lambda thing: (get(thing),)

    def read(thing: Any) -> Parts:
        try:
            return Parts(key, get_all(thing))
        except AttributeError:  # a field without a value
            found = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
            return Parts((kind, tuple(found)), tuple(found.values()))

    return read


def _read_items(kind: type, thing: Any) -> Parts:
    extra = extra_attributes(thing)
    if holds_tensors(thing, extra):
        return Parts(kind, _NONE)
    items = dict(thing)
    return Parts((kind, key_of_names(items), tuple(extra)), (*items.values(), *extra.values()))


def key_of_names(items: Mapping[Any, Any]) -> Hashable:
    """Return the keys of a dict, told apart by their types unless all are texts."""
    names = tuple(items)
    return names if all(type(name) is str for name in names) else tuple((type(name), name) for name in names)


def holds_tensors(leaf: Any, extra: Mapping[str, Any]) -> bool:
    """Whether a kind of dict has tensors among its attributes, where a copy of its items would leave the old ones."""
    from torchwise.workload.pytree import tensors  # which describes objects by this file

    own = any(isinstance(value, torch.Tensor) for value in getattr(leaf, "__dict__", {}).values())
    return own or bool(extra and tensors(extra))


def extra_attributes(leaf: Any) -> dict[str, Any]:
    """Return the public attributes that a kind of dict has beside its items, and that a model may read."""
    if dataclasses.is_dataclass(leaf):  # its attributes are its contents
        return {}
    found = getattr(leaf, "__dict__", {})
    items = "data" if isinstance(leaf, UserDict) else ""
    return {n: value for n, value in found.items() if n != items and not n.startswith("_") and not is_cached(leaf, n)}


def is_cached(leaf: Any, name: str) -> bool:
    """Whether an attribute is a property's value, computed from the others."""
    return isinstance(getattr(type(leaf), name, None), functools.cached_property)
