"""Give a wrapper's class the methods of the original's class, as Python and PyTorch take methods from the class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

CONTAINER = frozenset(
    {"__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__reversed__", "__setitem__"}
)
"""Methods of Sequential, ModuleList and ModuleDict, which Python takes from the class and never from an instance."""

CALLING = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
"""Methods by which a module is called. A wrapper's own hooks run around its call, and the original's within."""


def like(kind: type, original: type) -> type:
    """Return `kind`, or a subclass that forwards the methods that `original` overrides from PyTorch's module.

    They decide how a model moves (`_apply`, `to`), which parameters it has, or that it is a list of modules. Methods
    that `kind` itself defines stay.
    """
    return _make_forwarding_class(kind, _own(kind, original))


def _own(kind: type, original: type) -> tuple[str, ...]:
    mro = original.__mro__
    defined = {name for each in mro[: mro.index(torch.nn.Module)] for name in vars(each)}
    overridden = {name for name in defined if not name.startswith("__") and hasattr(torch.nn.Module, name)}
    found = (overridden | defined & CONTAINER) - set(vars(kind)) - CALLING
    return tuple(sorted(name for name in found if callable(getattr(original, name))))


@functools.cache
def _make_forwarding_class(kind: type, names: tuple[str, ...]) -> type:
    methods = {name: _make_forwarding_method(name) for name in names}
    return type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__}) if methods else kind


def _make_forwarding_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._dispatcher.original
        answer = getattr(original, name)(*args, **kwargs)
        return self if answer is original else answer

    method.__name__ = name
    return method
