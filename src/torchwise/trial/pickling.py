"""Write a live model for a worker: as cloudpickle writes it, and also what cloudpickle leaves out or refuses.

The worker recreates objects without state, such as locks. Methods that a program added to its modules' classes, which a
worker imports in their original form, travel along, with a digest of their code. The worker takes those that its own
class lacks.
"""

from __future__ import annotations

import contextvars
import hashlib
import io
import json
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch.nn.utils import parametrize

from torchwise._torch import modules
from torchwise.compile.guards.code_guard import is_called
from torchwise.errors import WorkloadError, format_error
from torchwise.workload.identity import bytecode

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The base class of `torch.save`'s own pickler."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to recreate an object in the worker."""
        kind = type(obj)
        if kind in _WAYS:
            return _WAYS[kind](obj)
        if obj is torch.default_generator:
            return _default_generator, ()
        if issubclass(kind, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            return _reduce_script(obj)
        if issubclass(kind, torch.nn.Module) and parametrize.is_parametrized(obj):
            return _reduce_parametrized(obj)
        return super().reducer_override(obj)


def _reference(reference: Any) -> Reduced:
    target = reference()
    return (weakref.ref, (target,)) if target is not None else (_dead_reference, ())


def _dead_reference() -> Any:
    return weakref.ref(threading.Event())  # which nothing else holds


def _local(local: Any) -> Reduced:
    return _local_with, (dict(vars(local)),)


def _local_with(state: dict[str, Any]) -> threading.local:
    made = threading.local()
    vars(made).update(state)
    return made


def _default_generator() -> torch.Generator:
    return torch.default_generator


def _reduce_script(script: Any) -> Reduced:
    written = io.BytesIO()
    torch.jit.save(script, written)
    return _script_of, (written.getvalue(), isinstance(script, torch.jit.ScriptFunction))


def _script_of(written: bytes, is_function: bool) -> Any:
    found = torch.jit.load(io.BytesIO(written), map_location="cpu")
    return found.forward if is_function else found


def _reduce_parametrized(module: torch.nn.Module) -> tuple[Any, ...]:
    names = [*module.parametrizations]  # type: ignore[misc]
    return _make_parametrized, (type(module).__bases__[0], names), dict(vars(module))


def _make_parametrized(kind: type[torch.nn.Module], names: list[str]) -> torch.nn.Module:
    """Make a parametrized module without its state, which `pickle` sets."""
    made = kind.__new__(kind)
    modules.PARAMETRIZED_CLASS.get("a parametrized module in a worker")(made)
    inject = modules.PARAMETRIZED_PROPERTY.get("a parametrized module in a worker")
    for name in names:
        inject(made, name)
    return made


_WAYS: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
    threading.Condition: lambda _: (threading.Condition, ()),
    threading.local: _local,
    contextvars.ContextVar: lambda variable: (contextvars.ContextVar, (variable.name,)),
    weakref.ref: _reference,
}
"""How to recreate each type, as `__reduce__` says it."""


@dataclass(frozen=True, slots=True)
class Method:
    """A function in a class, which a worker imports.

    Attributes:
        digest: of its code, and of the functions that it closes over.
        written: the function, pickled, or None if that failed, for the reason in `error`.
    """

    cls: type
    name: str
    digest: str
    written: bytes | None
    error: str = ""


def methods_put_in(things: Iterable[Any]) -> list[Method]:
    """List the methods added to the classes of some objects, and decorated ones, which cannot be distinguished."""
    classes = dict.fromkeys(cls for thing in things for cls in type(thing).__mro__ if _is_imported(cls))
    return [_method(cls, *found) for cls in classes for found in _put_in(cls)]


def put_in(methods: Iterable[Method]) -> None:
    """Add methods to those classes of this process that have others there, or none.

    Raises:
        WorkloadError: one of them could not be pickled.
    """
    for method in methods:
        own = vars(method.cls).get(method.name)
        function = _function(own)
        if function is not None and _digest(function) == method.digest:
            continue
        if method.written is None:
            raise WorkloadError(
                f"{method.cls.__qualname__}.{method.name} is another function in your process than where its class is "
                f"written, and cannot be sent to a worker ({method.error}): put it there in a module that a factory "
                "imports, and give that as package.module:factory or path/file.py:factory"
            )
        setattr(method.cls, method.name, cloudpickle.loads(method.written))


def _is_imported(cls: type) -> bool:
    """Return whether a worker gets a class by its name. Other classes travel by value, with all their contents."""
    found: Any = sys.modules.get(cls.__module__) if cls.__module__ != "__main__" else None
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls and cls.__module__ != "builtins"


def _put_in(cls: type) -> Iterator[tuple[str, Any, types.FunctionType]]:
    of_torch = cls.__module__.partition(".")[0] == "torch"
    for name, value in vars(cls).items():
        function = _function(value)
        if function is None or not is_called(cls, name, value):
            continue
        by_torch = str(function.__globals__.get("__name__")).partition(".")[0] == "torch"
        if not by_torch if of_torch else not function.__code__.co_qualname.startswith(f"{cls.__qualname__}."):
            yield name, value, function


def _function(value: Any) -> types.FunctionType | None:
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return value if isinstance(value, types.FunctionType) else None


def _digest(function: types.FunctionType) -> str:
    found, waiting = dict[types.FunctionType, Any](), [function]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = bytecode(one.__code__)
            cells = [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
            waiting += [value for value in cells if isinstance(value, types.FunctionType)]
    return hashlib.sha256(json.dumps([*found.values()]).encode()).hexdigest()


def _method(cls: type, name: str, value: Any, function: types.FunctionType) -> Method:
    digest = _digest(function)
    try:
        return Method(cls, name, digest, cloudpickle.dumps(value))
    except Exception as error:  # a value in the code may refuse in any way, which matters if the worker has other code
        return Method(cls, name, digest, None, format_error(error))
