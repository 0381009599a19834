"""A callable's twin: the same except for its outermost code object, to which Dynamo attaches compiled code.

Two ways of compiling one code object would answer each other's calls, or be looked up one behind the other. If a graph
breaks inside an inner function, the two still share that function's code.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.shared_copies import share
from torchwise.workload.deep_copy import deep_copy


def copy_with_fresh_code(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a twin of a module, which shares its parameters, or of a function.

    Anything else is returned unchanged.
    """
    if isinstance(call, types.FunctionType):
        return _copy_function(call)
    if not isinstance(call, torch.nn.Module) or "forward" in vars(call):
        return call
    kind = type(call)
    forward = kind.forward
    if not isinstance(forward, types.FunctionType):
        return call
    other = share(call)
    other.__class__ = type(kind.__name__, (kind,), {"forward": _copy_function(forward), "__module__": kind.__module__})
    return other


def fresh_copy(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a module with its state and its parts' code, which shares its parameters, or a function's twin.

    Raises:
        WorkloadError: something in it cannot be copied.
    """
    if not isinstance(call, torch.nn.Module):
        return copy_with_fresh_code(call)
    copied: torch.nn.Module = deep_copy(call, {id(parameter): parameter for parameter in call.parameters()})
    kinds: dict[type, type] = {}
    for part in copied.modules():
        kind, forward = type(part), type(part).forward
        if isinstance(forward, types.FunctionType) and not kind.__module__.startswith("torch."):
            body = {"forward": _copy_function(forward), "__module__": kind.__module__}
            part.__class__ = kinds.setdefault(kind, type(kind.__name__, (kind,), body))
    return copied


def _copy_function(function: types.FunctionType) -> types.FunctionType:
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
