"""Where a call enters what is compiled: the forward of a module, below `Module.__call__`, which costs each call."""

from __future__ import annotations

import functools
import linecache
import types
from collections.abc import Callable
from typing import Any

import torch

LIBRARY = "torch.nn.modules."


def entry_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a module without hooks, and anything else itself."""
    if not isinstance(call, torch.nn.Module) or call._forward_hooks or call._forward_pre_hooks:
        return call
    if call._backward_hooks or call._backward_pre_hooks:
        return call
    forward: Callable[..., Any] = call.forward
    function = getattr(forward, "__func__", None)
    if isinstance(function, types.FunctionType) and _is_of_the_library(function):
        return types.MethodType(_traced_at_the_top(function), call)
    return forward


def _is_of_the_library(function: types.FunctionType) -> bool:
    """Whether its code stands there: `__module__` is copied by what wraps a function, and may be missing."""
    return str(function.__globals__.get("__name__")).startswith(LIBRARY)


@functools.cache
def _traced_at_the_top(function: types.FunctionType) -> types.FunctionType:
    """Return a forward of the library's own, such as that of `nn.Sequential`, as if it had been written elsewhere.

    Dynamo skips a frame of the library's files where compiled code begins with it, and wraps it in a function of its
    own. That wrapper is one more call, and what is compiled then depends on what it holds: guards that no look at the
    module covers, so that Dynamo's own way stays, and code that cannot be compiled ahead. It goes by the file's name.
    """
    file = function.__code__.co_filename
    other = f"torchwise:{file}"
    lines = linecache.getlines(file, function.__globals__)
    linecache.cache[other] = (sum(map(len, lines)), None, lines, other)  # for tracebacks, and `inspect`
    names = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copied = types.FunctionType(function.__code__.replace(co_filename=other), *names)
    copied.__kwdefaults__, copied.__annotations__ = function.__kwdefaults__, function.__annotations__
    copied.__dict__.update(function.__dict__)
    return copied
