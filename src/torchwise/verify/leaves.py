"""The leaves of an answer in a comparable form.

NumPy's values and sparse or nested tensors become ordinary tensors, and objects become their contents. An object is
taken apart as `pickle` would: by its own description (`__reduce_ex__`), which covers a plain Python object's
attributes. An object that refuses that, such as a generator, a lock or an open file, stays whole and cannot be
compared.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchwise.workload import layouts, pytree

VALUES = (bool, int, float, complex, str, bytes, types.NoneType, enum.Enum)
"""Python's plain values, which `==` compares."""
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
"""Code, which is equal only if it is the same object: no call changes it."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves and the form of an answer.

    Attributes:
        named: every leaf with its path. Tensors are the answer's own, or share memory with its arrays.
        form: the containers and the objects around them.
    """

    named: list[tuple[str, Any]] = field(default_factory=list)
    form: list[str] = field(default_factory=list)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the leaves, in order."""
        return [leaf for _, leaf in self.named if isinstance(leaf, torch.Tensor)]


def leaves_of(tree: Any, prefix: str = "", *, objects: bool = True) -> Leaves:
    """Return the leaves of a tree of tensors, arrays and objects, with a prefix on every path.

    `objects` says whether to take objects apart. Arrays always are.
    """
    found = Leaves(form=[pytree.form(tree)])
    _gather(tree, prefix, found, (), objects)
    return found


def _gather(tree: Any, prefix: str, found: Leaves, around: tuple[int, ...], objects: bool) -> None:
    for name, leaf in pytree.list_named_leaves(tree, prefix):
        parts = _array_contents(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else None
        if isinstance(leaf, torch.Tensor) and not layouts.is_strided(leaf):
            parts = layouts.list_strided_parts(leaf)
        if parts is None and objects and not (is_value(leaf) or isinstance(leaf, (torch.Tensor, *CODE))):
            parts = _object_contents(leaf)
        if parts is None:
            found.named.append((name, leaf))
        elif id(leaf) in around:  # an object that leads to itself
            found.named.append((name, f"the object {around[::-1].index(id(leaf))} around this one"))
        else:
            found.form.append(f"{name or 'it'} {_kind(leaf)}")
            for path, part in parts:
                if (form := pytree.form(part)) != "*":
                    found.form.append(f"{name}{path} {form}")
                _gather(part, f"{name}{path}", found, (*around, id(leaf)), objects)


def is_unread(leaf: Any) -> bool:
    """Whether a leaf computes only once it is read: a call that answers with it has done next to nothing."""
    return isinstance(leaf, (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType, map, filter, zip))


def unread_note(call: Callable[..., Any]) -> str:
    """Say which part of a model is timed if it is written as a generator. Return "" for any other."""
    code = call.forward if isinstance(call, torch.nn.Module) else call
    if not (inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code) or inspect.iscoroutinefunction(code)):
        return ""
    return (
        "the model is written as a generator or coroutine, which computes nothing before it is read: a call is timed "
        "for making it only, and its answer is not compared. Give a function that returns a list of what it yields"
    )


def is_value(leaf: Any) -> bool:
    """Whether a leaf holds nothing that can change, and `==` compares it."""
    return isinstance(leaf, (*VALUES, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format))


def is_same_code(one: Any, other: Any) -> bool:
    """Whether both are one function, class or module."""
    return one is other and isinstance(one, CODE)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return layouts.layout_of(leaf)
    kind = type(leaf).__qualname__
    return f"{kind}[{leaf.dtype}]" if isinstance(leaf, np.ndarray) else kind


def _array_contents(array: Any) -> list[tuple[str, Any]]:
    """Return the contents of a NumPy array or scalar."""
    if isinstance(array, np.ma.MaskedArray):
        return [(".data", array.filled(0)), (".mask", np.ma.getmaskarray(array))]
    contents = np.asarray(array)
    if contents.dtype.names:
        return [(f"[{name!r}]", contents[name]) for name in contents.dtype.names]
    if contents.dtype.kind in "mM":  # times: whole numbers of a unit, which the dtype names
        contents = contents.view(np.int64)
    if contents.dtype.kind in "OUSV":
        values = contents.tobytes() if contents.dtype.kind == "V" else contents.tolist()
        return [(".shape", contents.shape), ("", values)]
    return [("", torch.from_numpy(_readable(contents)))]


def _readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in a form that PyTorch accepts, unchanged if possible."""
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and width > 1:  # PyTorch compares few of these, and the name tells dtypes apart
        return array.view(np.int64) if width == 8 and array.dtype.isnative else array.astype(np.int64)
    if kind in "fc" and width > (8 if kind == "f" else 16):
        return array.astype(np.float64 if kind == "f" else np.complex128)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return array if plain and _has_whole_strides(array) else array.copy()


def _has_whole_strides(array: np.ndarray[Any, Any]) -> bool:
    """Whether strides are whole elements, as PyTorch needs them."""
    return all(stride % array.itemsize == 0 for stride in array.strides) if array.itemsize else True


def _object_contents(leaf: Any) -> list[tuple[str, Any]] | None:
    """Return the contents of an object, by path, or None if it does not reveal them."""
    if isinstance(leaf, (set, frozenset)):
        return [("", sorted(leaf, key=repr))] if all(isinstance(item, VALUES) for item in leaf) else None
    if isinstance(leaf, (bytearray, memoryview)):
        return [("", bytes(leaf))]
    try:
        reduced = leaf.__reduce_ex__(4)
        return [("", reduced)] if isinstance(reduced, str) else list(_unpack_reduced(*reduced[1:]))
    except Exception:  # a custom object may raise anything here, and then nothing is known of it
        return None


def _unpack_reduced(
    arguments: tuple[Any, ...], state: Any = None, items: Any = None, entries: Any = None, _setter: Any = None
) -> Iterator[tuple[str, Any]]:
    """Yield an object's description for `pickle`: constructor arguments, attributes, and items as a container."""
    yield from ((f"({place})", value) for place, value in enumerate(arguments) if not isinstance(value, type))
    slots: Any = None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # attributes, and `__slots__`
        state, slots = state
    for attributes in (state, slots):
        if isinstance(attributes, dict):
            yield from _attributes(attributes)
        elif attributes is not None:
            yield ".state", attributes
    yield from ((f"[{place}]", value) for place, value in enumerate(items or ()))
    yield from ((f"[{key!r}]", value) for key, value in entries or ())


def _attributes(attributes: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    return ((f".{name}", value) for name, value in attributes.items())
