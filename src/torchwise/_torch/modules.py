"""Modules: hooks on all, base classes of kinds, classes that parametrizations make, and groups of processes."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.dropout import _DropoutNd as Dropout

from torchwise._torch.private_name import PrivateName

__all__ = ["BatchNorm", "Dropout", "NormBase"]

HAS_GLOBAL_HOOK = PrivateName("torch.nn.modules.module", "_has_any_global_hook")
MODULE_CALL = torch.nn.Module.__call__
"""The call of every module, as PyTorch defines it, also while `set_call_hook` replaces it."""
DOES_NO_MORE = set(getattr(getattr(MODULE_CALL, "__code__", None), "co_names", ())) == {
    "_compiled_call_impl",
    "_call_impl",
}
"""Whether this PyTorch's `Module.__call__` only chooses between these two functions, so that a caller may do so."""
CALL_IMPL = torch.nn.Module._call_impl
"""Runs a module's hooks and its forward."""
PARAMETRIZED_CLASS = PrivateName("torch.nn.utils.parametrize", "_inject_new_class")
PARAMETRIZED_PROPERTY = PrivateName("torch.nn.utils.parametrize", "_inject_property")
SET_GROUP_TIMEOUT = PrivateName("torch.distributed.distributed_c10d", "_set_pg_timeout")
"""Sets how long the ranks of a group wait for each other."""

CallHook = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Answers a call: it gets the module or function, a callable that answers as before, and the arguments."""

_is_traced = torch.compiler.is_dynamo_compiling


class _Here(threading.local):
    """Whether this thread is inside a call that the hook was told about."""

    within = False


_here = _Here()
_hook: CallHook | None = None
_former_call: Callable[..., Any] = MODULE_CALL
"""The call of every module without a hook: PyTorch's own, or one that a library has put in its place."""
_over: Callable[..., Any] | None = None
"""The call that a library has put over `call_with_hook`, and left there."""


def set_call_hook(hook: CallHook | None) -> CallHook | None:
    """Have `hook` answer each call of a module that is not part of another such call, and return the former hook.

    None gives the call back that was there before. A forked process begins without a hook. Dynamo traces through.
    """
    global _hook, _former_call, _over
    if hook is not None:
        importlib.import_module("torch._dynamo")  # keeps the call that it finds when it is first imported
    former, _hook = _hook, hook
    is_ours = torch.nn.Module.__call__ is call_with_hook
    if hook is not None and former is None and not is_ours and torch.nn.Module.__call__ is not _over:
        _former_call = torch.nn.Module.__call__  # which a library may have put in PyTorch's place
        torch.nn.Module.__call__ = call_with_hook  # type: ignore[method-assign]
    elif hook is None and is_ours:
        torch.nn.Module.__call__ = _former_call  # type: ignore[method-assign]
    elif hook is None and former is not None:  # a library has put a call over ours, which goes on to call ours
        _over = torch.nn.Module.__call__
    return former


def call_with_hook(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a module, by way of the hook unless this is part of such a call."""
    if _is_traced() or _here.within or _hook is None:
        if DOES_NO_MORE and _former_call is MODULE_CALL and module._compiled_call_impl is None:
            return module._call_impl(*args, **kwargs)  # a Python call less for each part of a model
        return _former_call(module, *args, **kwargs)
    return answer_by_hook(module, lambda *args, **kwargs: _former_call(module, *args, **kwargs), args, kwargs)


def answer_by_hook(thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have the hook answer a call that `run` answers without it, unless this is part of such a call."""
    hook = _hook
    if _is_traced() or _here.within or hook is None:
        return run(*args, **kwargs)
    _here.within = True
    try:
        return hook(thing, run, args, kwargs)
    finally:
        _here.within = False


def call_with_parts_apart(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `run` inside the hook, so that the hook also answers the calls of modules in it."""
    _here.within = False
    try:
        return run(*args, **kwargs)
    finally:
        _here.within = True


os.register_at_fork(after_in_child=lambda: set_call_hook(None) and None)
