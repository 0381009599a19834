"""List the contents of each kind of object for a search for state: where a call may write, and where to look next."""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import io
import itertools
import logging
import pickle
import random
import re
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import WorkloadError
from torchwise.workload import pytree
from torchwise.workload.closure import globals_of
from torchwise.workload.state_places import MISSING, ContentPlace, ItemsPlace, Place, SlotPlace, TensorPlace

Children = list[tuple[str, Any]]
"""Paths of things, and the things."""
Look = Callable[[str, Any], "Contents"]

_SKIPPED = frozenset({"_torchwise", "_dispatcher", "_compiled_call_impl"})
"""Attributes that Torchwise or PyTorch added to an object, which are no state of it."""
_REGISTERED = ("_parameters", "_buffers", "_modules")
_SCRIPT_ATTRIBUTE = re.compile(r'prim::[GS]etAttr\[name="(\w+)"\]')
_LIBRARIES = frozenset({"torch", "torchwise", "numpy", *sys.stdlib_module_names}) - {"__main__"}
_KERNEL_COMPILERS = frozenset({"triton", "numba"})
_DESCRIPTORS = (property, classmethod, staticmethod, functools.cached_property, types.MemberDescriptorType)


_known_looks: weakref.WeakKeyDictionary[type, Look] = weakref.WeakKeyDictionary()
"""The function that lists the contents of objects of a type, once one was seen: there are some twenty."""


@dataclass(slots=True)
class Contents:
    """The contents of one object, for a search for state.

    Attributes:
        leaf: the value to compare it by, or `MISSING` if its children say everything.
        places: the places where a call may write.
        children: the objects that it leads to.
    """

    leaf: Any
    places: list[Place]
    children: Children


def contents_of(path: str, thing: Any) -> Contents:
    """Return the contents of one object that is no plain data (`pytree.PLAIN`), under its name."""
    kind = type(thing)
    look = _known_looks.get(kind)
    if look is None:
        look = next((look for kinds, look in _listers_by_type() if isinstance(thing, kinds)), _any)
        if getattr(thing, "__class__", None) is kind:  # a stand-in for another object may say that it is of its kind
            _known_looks[kind] = look
    return look(path, thing)


def _any(path: str, thing: Any) -> Contents:
    """List the contents of any other object, unless PyTorch made it of code and keeps caches on it (an operator)."""
    return Contents(MISSING, [], []) if _is_code(type(thing).__module__) else _object(path, thing)


def _object(path: str, thing: Any) -> Contents:
    """List the attributes of an object, and those that its class keeps for all of its objects."""
    found = Contents(MISSING, [], [])
    own = getattr(thing, "__dict__", None)
    if isinstance(own, dict):
        found.places.append(ItemsPlace(own, _SKIPPED))
        for name, value in own.items():
            if name in _REGISTERED and isinstance(value, dict):
                found.places.append(ItemsPlace(value))
                found.children += [(_join_path(path, key), item) for key, item in value.items()]
            elif name not in _SKIPPED:
                found.children.append((_join_path(path, name), value))
        if (original := getattr(own.get("_torchwise"), "original", None)) is not None:  # which an optimised one runs
            found.children.append((path, original))
    for name in _slots_of(type(thing)):
        found.places.append(SlotPlace(functools.partial(getattr, thing, name), functools.partial(_set, thing, name)))
        found.children.append((_join_path(path, name), getattr(thing, name, None)))
    if not _is_library(type(thing).__module__):
        found.children.append((type(thing).__qualname__, type(thing)))
    return found


def _dict(path: str, thing: Any) -> Contents:
    found = _object(path, thing)
    found.places.append(ItemsPlace(thing))
    found.children += [(f"{path}[{k!r}]" if type(k) in pytree.PLAIN else f"{path}[…]", v) for k, v in thing.items()]
    found.leaf = len(thing)
    return found


def _list(path: str, thing: Any) -> Contents:
    def write(kept: list[Any]) -> None:
        thing.clear()
        thing.extend(kept)

    found = _tuple(path, thing)
    found.places.append(ContentPlace(lambda: list(thing), write))
    found.leaf = len(thing)
    return found


def _tuple(path: str, thing: Any) -> Contents:
    found = _object(path, thing)
    found.children += [(f"{path}[{number}]", item) for number, item in enumerate(thing)]
    return found


def _set_of(_: str, thing: Any) -> Contents:
    def write(kept: frozenset[Any]) -> None:
        thing.clear()
        thing.update(kept)

    return Contents(len(thing), [ContentPlace(lambda: frozenset(thing), write)], [])


def _module(path: str, thing: Any) -> Contents:
    """List the contents of a module, and the functions that a call of it runs, which may name global variables."""
    if getattr(thing, "has_uninitialized_params", bool)():
        return Contents(MISSING, [], [])  # a lazy module, which its first call makes for good
    found = _object(path, thing)
    own = [vars(kind) for kind in type(thing).__mro__]
    functions = [names[name] for names in own for name in ("forward", "__call__") if name in names]
    found.children += [(path, function) for function in functions if isinstance(function, types.FunctionType)]
    return found


def _script(path: str, thing: Any) -> Contents:
    """List the tensors of a TorchScript module, and the attributes that its code names: they are not Python's."""
    tensors = [*thing.named_parameters(), *thing.named_buffers()]
    found = Contents(MISSING, [], [(_join_path(path, name), tensor) for name, tensor in tensors])
    if not hasattr(thing, "forward"):
        return found
    named = sorted({*_SCRIPT_ATTRIBUTE.findall(str(thing.inlined_graph))})
    registered = {name.rpartition(".")[2] for name, _ in (*tensors, *thing.named_modules())}
    for prefix, part in thing.named_modules():
        for name in (name for name in named if name not in registered and hasattr(part, name)):
            found.places.append(
                SlotPlace(functools.partial(getattr, part, name), functools.partial(setattr, part, name))
            )
            found.children.append((_join_path(_join_path(path, prefix) if prefix else path, name), getattr(part, name)))
    return found


def _function(path: str, thing: types.FunctionType) -> Contents:
    """List a function's closure, defaults and attributes, and the global variables that it names."""
    found = Contents(MISSING, [], [])
    known = thing.__globals__
    if _is_library(str(known.get("__name__"))):
        return found
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
        found.places.append(
            SlotPlace(functools.partial(getattr, cell, "cell_contents"), functools.partial(_fill, cell))
        )
        with contextlib.suppress(ValueError):  # not bound yet
            found.children.append((_join_path(path, name), cell.cell_contents))
    found.children += [(_join_path(path, "default"), value) for value in thing.__defaults__ or ()]
    found.children += [(_join_path(path, name), value) for name, value in (thing.__kwdefaults__ or {}).items()]
    for name, value in globals_of(thing).items():
        found.places.append(
            SlotPlace(functools.partial(known.__getitem__, name), functools.partial(_name, known, name))
        )
        found.children.append((f"global {name}", value))
    own = vars(thing)  # with what `functools.wraps` copied
    found.places.append(ItemsPlace(own, _SKIPPED))
    found.children += [(_join_path(path, name), value) for name, value in own.items() if name not in _SKIPPED]
    return found


def _method(path: str, thing: types.MethodType) -> Contents:
    return Contents(MISSING, [], [(path, thing.__self__), (path, thing.__func__)])


def _partial(path: str, thing: functools.partial[Any]) -> Contents:
    bound = [*enumerate(thing.args), *thing.keywords.items()]
    return Contents(MISSING, [], [(path, thing.func), *((f"{path}[{key!r}]", value) for key, value in bound)])


def _class(path: str, thing: type) -> Contents:
    """List the attributes that a class of the program's own keeps for all of its objects."""
    found = Contents(MISSING, [], [])
    for base in thing.__mro__:
        for name, value in () if _is_library(base.__module__) else [*vars(base).items()]:
            if not name.startswith("__") and not isinstance(value, (types.FunctionType, *_DESCRIPTORS)):
                read = functools.partial(_class_item, base, name)
                found.places.append(SlotPlace(read, functools.partial(_set, base, name)))
                found.children.append((_join_path(path, name), value))
    return found


def _array(_: str, thing: Any) -> Contents:
    if thing.dtype.hasobject:
        return Contents(MISSING, [], [])

    def write(kept: tuple[bytes, ...]) -> None:
        import numpy

        thing[...] = numpy.frombuffer(kept[0], thing.dtype).reshape(thing.shape)

    return Contents(thing, [ContentPlace(lambda: (thing.tobytes(),), write)], [])


def _bytes(_: str, thing: Any) -> Contents:
    def write(kept: bytes) -> None:
        del thing[:]
        thing.extend(kept) if isinstance(thing, bytearray) else thing.frombytes(kept)

    return Contents(bytes(thing), [ContentPlace(lambda: bytes(thing), write)], [])


def _make_lister(read: Callable[[Any], Any], write: Callable[[Any, Any], Any]) -> Look:
    """Return a function that lists the contents of objects with a state that can be read and set."""
    return lambda _, thing: Contents(
        read(thing), [ContentPlace(functools.partial(read, thing), functools.partial(write, thing))], []
    )


def _generator(path: str, thing: types.GeneratorType[Any, Any, Any]) -> Contents:
    """List the state of a generator: the instruction, its variables, and the iterator that it yields from."""

    def read() -> tuple[Any, ...]:
        frame, inner = thing.gi_frame, thing.gi_yieldfrom
        if frame is None:
            return (None,)
        place = inner.__reduce__()[2:] if hasattr(inner, "__setstate__") else id(inner)
        return (frame.f_lasti, repr(place), *map(id, frame.f_locals.values()))

    return Contents(read(), [ContentPlace(read, functools.partial(_refuse, path, "generator"))], [])


def _iterator(path: str, thing: Any) -> Contents:
    """List the position of an iterator over a list or the like. It can be reset unless the iterator came to its end."""

    def read() -> tuple[Any, ...]:
        return tuple(state if type(state) in pytree.PLAIN else None for state in thing.__reduce__()[2:])

    def write(kept: tuple[Any, ...]) -> None:
        thing.__setstate__(kept[0])
        if read() != kept:
            _refuse(path, type(thing).__name__, kept)

    return Contents(read(), [ContentPlace(read, write)], [])


def _empty_contents(_: str, __: Any) -> Contents:
    return Contents(MISSING, [], [])


@functools.cache
def _listers_by_type() -> list[tuple[Any, Look]]:
    """Return the function for each kind of object. The first that fits counts, and all others are plain objects."""
    import numpy

    closed = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, logging.Logger, torch.fx.Graph, torch.Size)
    several: list[Any] = [[], (), range(1), "", b""]
    iterators = tuple({type(iter(many)) for many in several})
    return [
        (torch.Tensor, lambda path, thing: Contents(thing, [TensorPlace(path, thing)], [])),
        (torch.jit.ScriptModule, _script),
        (torch.nn.Module, _module),
        (dict, _dict),
        (collections.UserDict, _object),
        ((list, collections.deque), _list),
        (tuple, _tuple),
        (set, _set_of),
        (types.FunctionType, _function),
        (types.MethodType, _method),
        (functools.partial, _partial),
        (type, _class),
        (numpy.ndarray, _array),
        ((bytearray, array.array), _bytes),
        (
            torch.Generator,
            _make_lister(lambda g: tuple(g.get_state().tolist()), lambda g, kept: g.set_state(torch.ByteTensor(kept))),
        ),
        (
            random.Random,
            _make_lister(lambda r: (pickle.dumps(r.getstate()),), lambda r, kept: r.setstate(pickle.loads(kept[0]))),
        ),
        (numpy.random.Generator, _make_lister(_bits, _set_bits)),
        (
            numpy.random.RandomState,
            _make_lister(lambda r: (pickle.dumps(r.get_state()),), lambda r, kept: r.set_state(pickle.loads(kept[0]))),
        ),
        (types.GeneratorType, _generator),
        (iterators, _iterator),
        (
            (*closed, io.IOBase, weakref.ReferenceType, itertools.count, itertools.cycle, itertools.repeat),
            _empty_contents,
        ),
    ]


def _join_path(path: str, name: Any) -> str:
    return f"{path}.{name}" if path and not path.endswith(" ") else f"{path}{name}"


def _slots_of(kind: type) -> list[str]:
    """List the names that a class of the program's own keeps beside a dict."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        found += [
            f"_{base.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names
        ]
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _set(thing: Any, name: str, value: Any) -> None:
    """Bind an attribute, of a frozen dataclass too, or delete it."""
    if isinstance(thing, type):
        delattr(thing, name) if value is MISSING else setattr(thing, name, value)
    elif value is MISSING:
        object.__delattr__(thing, name)
    else:
        object.__setattr__(thing, name, value)


def _fill(cell: types.CellType, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _name(known: dict[str, Any], name: str, value: Any) -> None:
    if value is MISSING:
        known.pop(name, None)
    else:
        known[name] = value


def _class_item(base: type, name: str) -> Any:
    return vars(base)[name]


def _bits(generator: Any) -> tuple[bytes]:
    return (pickle.dumps(generator.bit_generator.state),)


def _set_bits(generator: Any, kept: tuple[bytes]) -> None:
    generator.bit_generator.state = pickle.loads(kept[0])  # of this process, made a moment ago


def _refuse(path: str, kind: str, _: Any) -> None:
    raise WorkloadError(
        f"the call advances {path}, an object of type {kind}, which can be neither copied nor restored, but every "
        "candidate must start from the same state: use a list and an index instead"
    )


def _is_code(name: str) -> bool:
    """Whether a module belongs to a compiler: PyTorch's private modules, and the compilers of kernels."""
    return name.startswith("torch._") or name.partition(".")[0] in _KERNEL_COMPILERS


@functools.cache
def _is_library(name: str) -> bool:
    """Whether a module is installed, so that its variables and classes hold no state of the program."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name.partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file
