"""A callable's twin: the same in all but its outermost code object, which Dynamo hangs what it compiled on.

Two ways of compiling one code object would answer each other's calls, or be looked up one behind the other. Where a
graph breaks inside of an inner function, that one's code is shared all the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from torchwise.realize.weights import share


def twin(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a twin of a module, which shares its parameters, or of a function; anything else as it is."""
    if isinstance(call, types.FunctionType):
        return _copied(call)
    if not isinstance(call, torch.nn.Module) or "forward" in vars(call):
        return call
    kind = type(call)
    forward = kind.forward
    if not isinstance(forward, types.FunctionType):
        return call
    other = share(call)
    other.__class__ = type(kind.__name__, (kind,), {"forward": _copied(forward), "__module__": kind.__module__})
    return other


def _copied(function: types.FunctionType) -> types.FunctionType:
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(vars(function))
    return copied
