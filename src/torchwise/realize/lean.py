"""The straight way into compiled code: what Dynamo compiled for a call, without its look-up and without its guards.

On every call `torch.compile` looks up what it compiled and checks its guards, hundreds for a model of some layers
(`benchmarks/dispatch.py` measures it). Most of them ask what has been asked already: the inputs' signature, and whether
the module changed (`ModuleWatch`). Where these two cover every guard that Dynamo set, the compiled code object is
called itself; where a single one is left over (a global number, an attribute of an attribute, a closure), Dynamo's own
way stays.

Source: PyTorch's `guard_filter_fn`, which is told every guard, and its debugging door to the compiled code objects.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from torchwise.realize.signature import is_plain, is_strided, opaque_leaves
from torchwise.realize.watch import ModuleWatch
from torchwise.workload import trees

Way = Callable[..., Any]

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
"""Taken not to change: a plan is proven for the program's code as it is."""
_CODE_OF = re.compile(r"\.__(?:code|defaults|kwdefaults|closure)__(?:\[[^\]]*\])?$")
_OF_TORCH = re.compile(r"__import_torch(?:_dot_\w+)?'")
_FASTPATH = "G['__import_torch_dot_backends_dot_mha']._is_fastpath_enabled"
"""A setting that attention and encoder layers of `torch.nn` read; it is looked at on each call (`checked`)."""
_ASKS_FOR_ATTRIBUTES = ("HASATTR", "NOT_PRESENT_IN_GENERIC_DICT")
_INSIDE = r"(?:\._modules\['[^']*'\])*(?:\.(?:_modules|_parameters|_buffers)(?:\['[^']*'\])?|\.\w+)?"


class Straight:
    """Finds the straight way for the calls of one function or bound method.

    Attributes:
        reason: why the last call looked at has none; "" where it has.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._function: Any = getattr(call, "__func__", call)
        self._owner = getattr(call, "__self__", None)
        self._source: types.CodeType | None = getattr(self._function, "__code__", None)
        self._guards: list[Any] = []
        self._breaks = _graph_breaks()
        self._seen: set[int] = set()
        self._versions: list[int] = []
        self._own_versions: list[int] = []
        self.reason = "it was not compiled yet"

    def guard_filter(self, guards: Sequence[Any]) -> list[bool]:
        """Take note of Dynamo's guards, and keep all of them (as `guard_filter_fn` of `torch.compile`)."""
        from torch._dynamo import config

        self._guards.extend(guards)
        _forget_tensors(guards)
        if config.skip_nnmodule_hook_guards and self._source is not None:
            _LOOSE.add(self._source)
        return [True] * len(guards)

    def tighten(self) -> None:
        """Have Dynamo forget what it compiled of this code without asking for hooks: one registered since must run.

        It does so by default, where a guard fails that no look at the module tells of, such as one on a global number;
        and what it compiled for one module serves others of the class.
        """
        from torch._C._dynamo import eval_frame

        if self._source is not None and self._source in _LOOSE:
            _LOOSE.discard(self._source)
            eval_frame.reset_code(self._source)

    def forget(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin anew, before a call with these arguments, which may compile something."""
        self._guards.clear()
        self._versions = _writes_to(trees.tensors((args, dict(kwargs))))
        self._own_versions = self._writes_to_own()
        self._breaks = _graph_breaks()
        self._seen = {id(entry.code) for entry in self._entries()}

    def way(self, steady: Way, guarded: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Way:
        """Return the quickest way for calls of this signature, which was just compiled.

        Args:
            steady: Dynamo's own way.
            guarded: the same, under the settings with which a change leads to compiling anew.
            args: of the call, as they are after it.
            kwargs: likewise.

        Where the module or a setting of PyTorch changes, what is returned answers by `guarded`.
        """
        code = self._code(args, kwargs)
        self._guards.clear()  # they hold the inputs
        watch = ModuleWatch(self._owner) if isinstance(self._owner, torch.nn.Module) else None
        if code is None:
            return steady if watch is None else watched(steady, guarded, watch)
        function = self._function
        inner = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        inner.__kwdefaults__ = function.__kwdefaults__
        straight = inner if self._owner is None else types.MethodType(inner, self._owner)
        return checked(straight, guarded, watch)

    def uncovered(self, guards: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return what one of these guards asks that neither a call's signature nor a look at the module tells."""
        given, own, _ = _bound(self._function, self._owner, args, kwargs)
        return next((_named(guard) for guard in guards if not _is_covered(guard, own, given)), None)

    def obstacle(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], covered: Container[int] = ()) -> str | None:
        """Return why code whose guards were noted may not be called without them, or None.

        Args:
            args: of the call.
            kwargs: likewise.
            covered: ids of guards whose question is asked otherwise.
        """
        asked = [guard for guard in self._guards if id(guard) not in covered]
        return self._obstacle(args, kwargs) or self.uncovered(asked, args, kwargs)

    def _code(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> types.CodeType | None:
        """Return the code object that answers this call, if it may be called itself; `reason` says why not."""
        self.reason = self._obstacle(args, kwargs) or ""
        if self.reason:
            return None
        given, own, local = _bound(self._function, self._owner, args, kwargs)
        if self._guards:
            return self._just_compiled(given, own)
        # Another module of the class, or an earlier one of this very kind, was compiled for such a call.
        serving = next((e.code for e in self._entries() if e.guard_manager.check(local)), None)
        needed = _KNOWN.get(serving) if serving is not None else None
        if needed is None or not needed <= given.keys():
            self.reason = "what serves it was compiled elsewhere, and its guards are not known"
            return None
        return serving

    def _just_compiled(self, given: Mapping[str, Any], own: str | None) -> types.CodeType | None:
        self.reason = next((f"it depends on {_named(g)}" for g in self._guards if not _is_covered(g, own, given)), "")
        if not self.reason and _graph_breaks() != self._breaks:
            self.reason = "the graph breaks, and what follows is compiled on Dynamo's own way only"
        # Other modules of the class share the code that was compiled, and other signatures do.
        new = [entry.code for entry in self._entries() if id(entry.code) not in self._seen]
        if not self.reason and len(new) != 1:
            self.reason = f"torch {torch.__version__} shows {len(new)} new compilations, where one was made"
        if self.reason:
            return None
        _KNOWN[new[0]] = {root for g in self._guards if (root := re.split(r"\W", _named(g), maxsplit=1)[0]) in given}
        made: types.CodeType = new[0]
        return made

    def _writes_to_own(self) -> list[int]:
        """Count the writes to each of the owner's own tensors, one of which a later input may be."""
        if not isinstance(self._owner, torch.nn.Module):
            return []
        return _writes_to([*self._owner.parameters(), *self._owner.buffers()])

    def _entries(self) -> list[Any]:
        """List everything that Dynamo compiled of this code, in the order in which it is asked whether it serves."""
        from torch._C._dynamo import eval_frame

        look: Callable[[types.CodeType], list[Any]] = getattr(eval_frame, "_debug_get_cache_entry_list", lambda _: [])
        return [] if self._source is None else look(self._source)

    def _obstacle(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return what speaks against any straight way for this call, whatever its guards are."""
        function, owner = self._function, self._owner
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            return "it is no plain function or method"
        if owner is not None and not isinstance(owner, torch.nn.Module):
            return f"it is a method of {type(owner).__qualname__}, which is no module"
        if torch.is_grad_enabled():
            return "gradients are enabled, and what needs one may change"
        tensors = trees.tensors((args, dict(kwargs)))
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or not is_strided(t) for t in tensors):
            return "an input is nested, sparse or of a class of its own, and a signature does not tell all of it"
        if any(t.is_complex() for t in tensors):
            return "an input is complex, and may be conjugated lazily"
        if _writes_to(tensors) != self._versions:
            return "it writes to its inputs, which may overlap"
        if self._writes_to_own() != self._own_versions:
            return "it writes to its own tensors, and an input may be one of them"
        opaque = opaque_leaves((args, dict(kwargs)))
        return f"an input holds {opaque[0]}" if opaque else None


_KNOWN: weakref.WeakKeyDictionary[types.CodeType, set[str]] = weakref.WeakKeyDictionary()
"""Code objects that may be called straight, each with the parameters that must be given, not left to a default."""


_LOOSE: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
"""Code objects of which something was compiled with no guard on the hooks of modules."""


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def _writes_to(tensors: list[torch.Tensor]) -> list[int]:
    return [t._version for t in tensors if not t.is_inference()]  # which keep no count


def _bound(
    function: types.FunctionType, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None, dict[str, Any]]:
    """Return the values of the parameters that the signature of a call tells of, the name of the owner's own, and all.

    A default that is left out is not in the signature, and may be an object that changes.
    """
    signature = inspect.signature(function)
    bound = signature.bind(*((owner, *args) if owner is not None else args), **kwargs)
    own = next(iter(signature.parameters)) if owner is not None else None
    defaults = {name: p.default for name, p in signature.parameters.items() if name not in bound.arguments}
    given = {*bound.arguments, *(name for name, value in defaults.items() if _is_frozen(value))} - {own or ""}
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in given}, own, dict(bound.arguments)


def watched(steady: Way, guarded: Way, watch: ModuleWatch) -> Way:
    """Return `steady` for as long as the module does not change, and else `guarded`."""
    changed = watch.changed

    def watched(*args: Any, **kwargs: Any) -> Any:
        return guarded(*args, **kwargs) if changed() else steady(*args, **kwargs)

    return watched


def checked(straight: Way, guarded: Way, watch: ModuleWatch | None) -> Way:
    """Return `straight` for as long as neither PyTorch's settings nor the module change, and else `guarded`."""
    from torch._C._dynamo.guards import GlobalStateGuard

    settings, stacked = GlobalStateGuard().check, torch._C._len_torch_function_stack
    modes = _function_modes()  # such as that of `torch.device(...)` as a context, or `torch.set_default_device`
    count = len(modes)
    fastpath = torch.backends.mha.get_fastpath_enabled
    had_fastpath = fastpath()
    changed = watch.changed if watch is not None else bool

    def checked(*args: Any, **kwargs: Any) -> Any:
        if not settings() or fastpath() is not had_fastpath:
            return guarded(*args, **kwargs)
        if changed() or stacked() != count or (count and _function_modes() != modes):
            return guarded(*args, **kwargs)
        return straight(*args, **kwargs)

    return checked


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _is_covered(guard: Any, own: str | None, given: Mapping[str, Any]) -> bool:
    """Whether the signature, the watch or the checks above notice whatever this guard notices."""
    name = _named(guard)
    if not name:  # settings of PyTorch: grad mode, determinism, default dtype and device
        return True
    if _CODE_OF.search(name):
        return True
    if name.startswith(("type(", "dict(type(")):  # a class's code, or the dict of it; what it holds else is data
        return isinstance(guard.value, _CODE) or guard.guard_type == "TYPE_MATCH" or name.endswith(".__dict__)")
    if guard.is_global:
        if isinstance(guard.value, _CODE) or name == _FASTPATH:
            return True
        return _OF_TORCH.search(name) is not None and not _is_frozen(guard.value)  # a plain value there is a setting
    root = re.match(r"\w+", name)
    if root and root[0] in given:
        return guard.guard_type not in _ASKS_FOR_ATTRIBUTES and _is_told(name[root.end() :], given[root[0]])
    if own is None or not re.fullmatch(re.escape(own) + _INSIDE, name):
        return False
    attribute = name.rpartition(".")[2]
    if name == own or attribute.startswith(("_modules", "_parameters", "_buffers", "_forward", "_backward")):
        return True
    return _is_frozen(guard.value) or isinstance(guard.value, _CODE)


def _is_told(place: str, value: Any) -> bool:
    """Whether a signature tells of a place in an argument: of all of it, of a leaf, or of what holds leaves.

    It does not tell of a tensor's attributes, nor of an object's private ones.
    """
    below = re.compile(re.escape(place) + r"(?=[.\[]|$)")
    return not place or any(below.match(leaf) for leaf, _ in trees.named_leaves(value))


def _is_frozen(value: Any) -> bool:
    return is_plain(value) or (isinstance(value, tuple) and all(map(_is_frozen, value)))


def _named(guard: Any) -> str:
    """Return the guard's place as Dynamo writes it, without the marks for local variables."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", str(guard.name))


def _forget_tensors(guards: Sequence[Any]) -> None:
    """Have Dynamo's guards forget the tensors that they are of, which they are told again.

    Where there is a filter all guards are made twice, and `Guard.set_export_info` asks by `in`, and so by `==`, whether
    the object is that of the first time. A guard on a NumPy array has a tensor of its own each time, and two live
    tensors compare element by element: that raised (torch 2.11 to 2.14).
    """
    for guard in guards:
        guarded = getattr(guard.orig_guard, "obj_weakref", None)
        if isinstance(guarded, weakref.ref) and isinstance(guarded(), torch.Tensor):
            guard.orig_guard.obj_weakref = None
