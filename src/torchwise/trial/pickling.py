"""Write a live model for a worker: as cloudpickle writes it, and also objects that cloudpickle refuses.

The worker recreates objects without state, such as locks.
"""

from __future__ import annotations

import contextvars
import io
import threading
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
from torch.nn.utils import parametrize

from torchwise._torch import modules

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
