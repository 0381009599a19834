"""Where a call enters what is compiled: the forward of a module, below `Module.__call__`, which costs each call."""

from __future__ import annotations

import functools
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
    if isinstance(function, types.FunctionType) and function.__module__.startswith(LIBRARY):
        return types.MethodType(_traced_at_the_top(function), call)
    return forward


@functools.cache
def _traced_at_the_top(function: types.FunctionType) -> types.FunctionType:
    """Return a forward of the library's own, such as that of `nn.Sequential`, as if it had been written here.

    Dynamo skips a frame of the library's files where compiled code begins with it, and wraps it in a function of its
    own. That wrapper is one more call, and what is compiled then depends on what it holds: guards that no look at the
    module covers, so that Dynamo's own way stays, and code that cannot be compiled ahead. It goes by the file's name.
    """
    code = function.__code__.replace(co_filename=__file__, co_firstlineno=1)
    names = (function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copied = types.FunctionType(code, *names)
    copied.__kwdefaults__, copied.__annotations__ = function.__kwdefaults__, function.__annotations__
    return copied
