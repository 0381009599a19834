"""The straight way into compiled code: what Dynamo compiled for a call, without its look-up and without its guards.

On every call `torch.compile` looks up what it compiled and checks up to a thousand guards (12 transformer layers: 342
microseconds). Most of them ask what has been asked already: the inputs' signature, and whether the module changed
(`ModuleWatch`). Where these two cover every guard that Dynamo set, the compiled code object is called itself; where a
single one is left over (a global number, an attribute of an attribute, a closure), Dynamo's own way stays.

Source: PyTorch's `guard_filter_fn`, which is told every guard, and its debugging door to the compiled code objects.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules import module as modules

from torchwise.realize.signature import opaque_leaves
from torchwise.realize.watch import ModuleWatch
from torchwise.workload import trees

Way = Callable[..., Any]

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
"""Taken not to change: a plan is proven for the program's code as it is."""
_FROZEN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    torch.memory_format,
)
_CODE_OF = re.compile(r"\.__(?:code|defaults|kwdefaults|closure)__(?:\[[^\]]*\])?$")
_INSIDE = r"(?:\._modules\['[^']*'\])*(?:\.(?:_modules|_parameters|_buffers)(?:\['[^']*'\])?|\.\w+)?"


class Straight:
    """Finds the straight way for the calls of one function or bound method.

    Attributes:
        reason: why the last call looked at has none; "" where it has.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._function = getattr(call, "__func__", call)
        self._owner = getattr(call, "__self__", None)
        self._guards: list[Any] = []
        self._breaks = _graph_breaks()
        self._known: set[int] = set()
        self.reason = "it was not compiled yet"

    def guard_filter(self, guards: Sequence[Any]) -> list[bool]:
        """Take note of Dynamo's guards, and keep all of them (as `guard_filter_fn` of `torch.compile`)."""
        self._guards.extend(guards)
        return [True] * len(guards)

    def forget(self) -> None:
        """Begin anew, before something is compiled."""
        self._guards.clear()
        self._breaks = _graph_breaks()
        self._known = {id(code) for code in self._compiled()}

    def way(self, steady: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Way:
        """Return the straight way for calls of this signature, which was just compiled; `steady` where there is none.

        It is for calls without gradients and without autocast. Where the module or a setting of PyTorch changes, it
        answers by `steady`, whose guards see for themselves.
        """
        code = self._code(args, kwargs)
        if code is None:
            return steady
        function = self._function
        inner = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        inner.__kwdefaults__ = function.__kwdefaults__
        straight = inner if self._owner is None else types.MethodType(inner, self._owner)
        return _checked(straight, steady, ModuleWatch(self._owner) if self._owner is not None else None)

    def _code(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> types.CodeType | None:
        self.reason = self._obstacle(args, kwargs) or ""
        if self.reason:
            return None
        # Other modules of the class share the code that was compiled, and other signatures do.
        new = [code for code in self._compiled() if id(code) not in self._known]
        if len(new) != 1:
            self.reason = f"torch {torch.__version__} shows {len(new)} new compilations, where one was made"
            return None
        return new[0]

    def _compiled(self) -> list[types.CodeType]:
        """List everything that Dynamo compiled of this code."""
        from torch._C._dynamo import eval_frame

        look: Callable[[types.CodeType], list[Any]] = getattr(eval_frame, "_debug_get_cache_entry_list", lambda _: [])
        code = getattr(self._function, "__code__", None)
        return [] if code is None else [entry.code for entry in look(code)]

    def _obstacle(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the first thing that neither the signature nor the watch covers."""
        function, owner = self._function, self._owner
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            return "it is no plain function or method"
        if owner is not None and not isinstance(owner, torch.nn.Module):
            return f"it is a method of {type(owner).__qualname__}, which is no module"
        if not self._guards:
            return "nothing was compiled for this very call"
        if _graph_breaks() != self._breaks:
            return "the graph breaks, and what follows is compiled on Dynamo's own way only"
        if any(t.is_complex() for t in trees.tensors((args, dict(kwargs)))):
            return "an input is complex, and may be conjugated lazily"
        if opaque := opaque_leaves((args, dict(kwargs))):
            return f"an input holds {opaque[0]}"
        names = list(inspect.signature(function).parameters)
        own = names.pop(0) if owner is not None else None
        return next((f"it depends on {_named(g)}" for g in self._guards if not _is_covered(g, own, names)), None)


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def _checked(straight: Way, steady: Way, watch: ModuleWatch | None) -> Way:
    from torch._C._dynamo.guards import GlobalStateGuard

    settings, stacked = GlobalStateGuard().check, torch._C._len_torch_function_stack
    modes = stacked()  # such as that of `torch.device(...)` as a context, or `torch.set_default_device`
    changed = watch.changed if watch is not None else bool

    def checked(*args: Any, **kwargs: Any) -> Any:
        if not settings() or changed() or stacked() != modes or modules._has_any_global_hook():
            return steady(*args, **kwargs)
        return straight(*args, **kwargs)

    return checked


def _is_covered(guard: Any, own: str | None, inputs: list[str]) -> bool:
    """Whether the signature, the watch or the checks above notice whatever this guard notices."""
    name = _named(guard)
    if not name:  # settings of PyTorch: grad mode, determinism, default dtype and device
        return True
    if _CODE_OF.search(name):
        return True
    if name.startswith(("type(", "dict(type(")):  # a class's own constants are data, the rest of it is code
        return guard.guard_type not in ("CONSTANT_MATCH", "EQUALS_MATCH")
    if guard.is_global:
        return "__import_torch" in name or isinstance(guard.value, _CODE)
    root = re.match(r"\w+", name)
    if root and root[0] in inputs:
        return True
    if own is None or not re.fullmatch(re.escape(own) + _INSIDE, name):
        return False
    attribute = name.rpartition(".")[2]
    if name == own or attribute.startswith(("_modules", "_parameters", "_buffers", "_forward", "_backward")):
        return True
    return _is_frozen(guard.value) or isinstance(guard.value, _CODE)


def _is_frozen(value: Any) -> bool:
    return isinstance(value, _FROZEN) or (isinstance(value, tuple) and all(map(_is_frozen, value)))


def _named(guard: Any) -> str:
    """Return the guard's place as Dynamo writes it, without the marks for local variables."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", str(guard.name))
