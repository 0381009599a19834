"""The entry of a call into compiled code: the innermost callable that does the same as the user's call.

Usually that is the forward of a module, as `Module.__call__` takes time on each call. If there is more between the two
(a `__call__` of the class's own, a hook, a descriptor), it is part of the compiled code.

A model of equal blocks may be compiled block by block, once for all of them.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchwise._torch.call_hook import is_hooked
from torchwise._torch.dynamo import SILENT_CALLS
from torchwise._torch.modules import CALL_IMPL, DOES_NO_MORE, HAS_GLOBAL_HOOK, MODULE_CALL
from torchwise.errors import UnsupportedError

LIBRARY = "torch.nn.modules."
BY_TORCH = MODULE_CALL
_has_global_hook: Callable[[], bool] = HAS_GLOBAL_HOOK.get("calling a forward")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def entry_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that does the same as a call: the forward of a module if possible, or else its call."""
    if not isinstance(call, torch.nn.Module):
        return call
    if not calls_forward_alone(call):
        return _find_call_entry(call)
    forward: Callable[..., Any] = call.forward
    function = getattr(forward, "__func__", None)
    if isinstance(function, types.FunctionType) and _is_of_the_library(function):
        return types.MethodType(_copy_with_other_file(function), call)
    return forward


def calls_forward_alone(module: torch.nn.Module) -> bool:
    """Whether a call of a module only calls its present forward."""
    return (
        not has_own_call(type(module))
        and type(module)._call_impl is CALL_IMPL
        and "_call_impl" not in vars(module)
        and _is_compiled_by_torch(module)
        and not any(getattr(module, name) for name in HOOKS)
        and not _has_global_hook()
        and _has_stable_forward(module)
    )


def has_own_call(cls: type[torch.nn.Module]) -> bool:
    """Whether calling an instance differs from `torch.nn.Module`, by a `__call__` of a class's own."""
    calls = (vars(each)["__call__"] for each in cls.__mro__ if "__call__" in vars(each))
    own = next(call for call in calls if not _adds_nothing(call))
    return not DOES_NO_MORE or (own is not BY_TORCH and not is_hooked(own))


def _adds_nothing(call: Any) -> bool:
    return getattr(call, "__globals__", {}).get("__name__") in SILENT_CALLS


def _is_compiled_by_torch(module: torch.nn.Module) -> bool:
    """Whether the replacement by `module.compile()`, if any, wraps the module's own call."""
    compiled = vars(module).get("_compiled_call_impl")
    return compiled is None or getattr(compiled, "_torchdynamo_orig_callable", None) == module._call_impl


def _has_stable_forward(module: torch.nn.Module) -> bool:
    """Whether `module.forward` is the same each time, unlike a property or another descriptor."""
    if type(module).__getattribute__ is not torch.nn.Module.__getattribute__:
        return False
    if "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):
        return True
    kinds = (types.FunctionType, staticmethod, classmethod)
    return isinstance(inspect.getattr_static(type(module), "forward"), kinds)


def _find_call_entry(module: torch.nn.Module) -> Callable[..., Any]:
    """Return the function that Python calls for a call of the module, in a form that compilers trace.

    Python looks it up in the class. An attribute `__call__` of the module itself, which PyTorch would use, is ignored.
    """
    call, is_own = inspect.getattr_static(type(module), "__call__"), has_own_call(type(module))
    if not is_own and "__call__" not in vars(module):
        return module
    if is_own and isinstance(call, types.FunctionType) and not _adds_nothing(call):
        return types.MethodType(call, module)

    def call_module(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call_module.inside = module  # type: ignore[attr-defined]
    return call_module


def _is_of_the_library(function: types.FunctionType) -> bool:
    """Whether its code is in the library. `__module__` is no proof, as wrappers copy it and it may be missing."""
    return str(function.__globals__.get("__name__")).startswith(LIBRARY)


@functools.cache
def _copy_with_other_file(function: types.FunctionType) -> types.FunctionType:
    """Return a copy of the library's own forward, such as that of `nn.Sequential`, under another file name.

    Dynamo skips a frame of the library's files if compiled code begins with it, and wraps it in a function of its own.
    That wrapper is one more call, and compiled code then depends on the wrapper's closure. No module guard covers
    guards on that closure, so they could not be bypassed, and the code could not be compiled ahead. Dynamo decides by
    the file's name.
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


MIN_BLOCKS = 3
MIN_SHARE = 0.5
"""Minimum share of the parameters that equal blocks must have, as the rest stays uncompiled."""


def find_repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the largest group of siblings of one class and one shape, or nothing if none dominates the model.

    Compiled block by block, a transformer of 12 layers took 1.6 s, and 6.3 s as a whole, at the same steady speed
    (torch 2.13, two CPU cores).
    """
    total = sum(p.numel() for p in module.parameters())
    best: list[torch.nn.Module] = []
    for parent in module.modules():
        groups: dict[tuple[Any, ...], list[torch.nn.Module]] = defaultdict(list)
        for child in parent.children():
            shapes = tuple(tuple(p.shape) for p in child.parameters())
            if shapes and any(True for _ in child.children()):  # a single Linear is too small for a graph of its own
                groups[type(child), shapes].append(child)
        for group in groups.values():
            if len(group) >= MIN_BLOCKS and _size(group) >= max(MIN_SHARE * total, _size(best) + 1):
                best = group
    return best


def find_stages(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the parts of a model that can be computed again one by one, or nothing if they are no large part of it.

    Those are its repeated blocks, or else the longest row of parts of any classes, shapes and names.
    """
    best = find_repeated_blocks(module)
    if best:
        return best
    total = sum(p.numel() for p in module.parameters())
    for parent in module.modules():
        row = [part for part in _list_called(parent) if _size([part]) and any(True for _ in part.children())]
        if len(row) >= max(MIN_BLOCKS, len(best) + 1) and _size(row) >= MIN_SHARE * total:
            best = row
    return best


def _list_called(parent: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the children that a call may run. In place of a mere container, which has no forward, yield its own."""
    for child in parent.children():
        if type(child).forward is torch.nn.Module.forward:
            yield from _list_called(child)
        else:
            yield child


def compile_blocks(module: Callable[..., Any], compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Compile the forward of each repeated block of `module`, in place.

    `block.compile()` silently compiles nothing for PyTorch's built-in classes. Replacing `forward` works for them.

    Raises:
        UnsupportedError: the model has no repeated blocks.
    """
    blocks = find_repeated_blocks(module)  # type: ignore[arg-type]
    if not blocks:
        raise UnsupportedError("scope is 'regional', but the model has no repeated blocks with most of its parameters")
    for block in blocks:
        block.forward = compiler(block.forward)


def _size(modules: list[torch.nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
