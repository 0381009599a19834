"""Copy a callable with a new outermost code object, to which Dynamo attaches compiled code.

Otherwise two compilations of one code object would answer each other's calls, or be looked up one after the other. If a
graph breaks inside an inner function, the two still share that function's code.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.shared_copies import share
from torchwise.workload.deep_copy import deep_copy


def copy_with_fresh_code(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a module, which shares its parameters, or of a function, with a new outermost code object.

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
    copied = share(call)
    copied.__class__ = type(kind.__name__, (kind,), {"forward": _copy_function(forward), "__module__": kind.__module__})
    return copied


def fresh_copy(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a module with its own state and new code objects in all submodules, or of a function.

    The copy of a module shares its parameters.

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
