"""Call Dynamo's compiled code directly, without its cache lookup and its guards.

On every call `torch.compile` looks up its compiled code and checks the guards. There are hundreds for a model of some
layers (`benchmarks/dispatch.py` measures it). Most of them repeat checks of the inputs' signature, and of changes of
the module (`ModuleGuard`). If these two checks cover every guard of Dynamo, the compiled code object is called
directly. If a single guard remains (a global number, an attribute of an attribute, a closure), calls go through Dynamo.

Source: PyTorch's `guard_filter_fn`, which receives every guard, and its debugging access to the compiled code objects.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.compile.guards.fast_path import Call, FastPath, Finish, fast_path, make_fast_path
from torchwise.compile.guards.global_constants import Constant, find_constants, make_constants_check
from torchwise.compile.guards.module_guard import Reads, make_quick_check
from torchwise.compile.signature import is_plain, is_strided, opaque_leaves
from torchwise.workload import pytree
from torchwise.workload.layouts import count_writes

_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
"""Types that are assumed not to change: a plan is verified for the program's present code."""
_CODE_OF = re.compile(r"\.__(?:code|defaults|kwdefaults|closure)__(?:\[[^\]]*\])?$")
_OF_TORCH = re.compile(r"__import_torch(?:_dot_\w+)?'")
_FASTPATH = "G['__import_torch_dot_backends_dot_mha']._is_fastpath_enabled"
"""A setting that attention and encoder layers of `torch.nn` read. It is checked on each call (`FastPath.holds`)."""
_ATTRIBUTE_GUARDS = ("HASATTR", "NOT_PRESENT_IN_GENERIC_DICT")
_INSIDE = r"(?:\._modules\['[^']*'\])*(?:\.(?:_modules|_parameters|_buffers)(?:\['[^']*'\])?|\.\w+)?"


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The facts about a compiled code object.

    Attributes:
        reason: why it may never be called directly, or "" if it may.
        needed: parameters that must be passed, not left to a default.
        reads: the attributes that its guards read of each module inside the owner (`Reads`).
        constants: the global variables whose values it holds.
    """

    reason: str
    needed: frozenset[str] = frozenset()
    reads: Reads = field(default_factory=dict)
    constants: tuple[Constant, ...] = ()


class GuardBypass:
    """Finds the bypass for the calls of one function or bound method.

    Attributes:
        reason: why the last inspected call has no bypass, or "" if it has one.
        own: the parameter for the module that owns the method, or None for a function.
        guards: the guards of the last compilation, until its code is known.
        backend: the compiler, as Dynamo knows it.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._function: Any = getattr(call, "__func__", call)
        self._owner = getattr(call, "__self__", None)
        self._source: types.CodeType | None = getattr(self._function, "__code__", None)
        self.guards: list[Any] = []
        self.backend: Any = None
        self._reads: dict[tuple[str, ...], set[str] | None] | None = {}
        self._breaks = 0
        self.reason = "it is not compiled yet"
        names = self._source.co_varnames if isinstance(self._owner, torch.nn.Module) and self._source else ()
        self.own = names[0] if names else None

    def guard_filter(self, guards: Sequence[Any]) -> list[bool]:
        """Record Dynamo's guards, and keep all of them (as `guard_filter_fn` of `torch.compile`)."""
        self.guards = list(guards)  # a restarted compilation builds them again
        forget_tensors(guards)
        return [True] * len(guards)

    def begin(self) -> None:
        """Reset, before a frame is compiled."""
        self.guards = []
        self._breaks = dynamo.count_graph_breaks()

    def is_of(self, code: types.CodeType) -> bool:
        """Whether it is the callable's own code, and not a part of it that Dynamo compiles separately."""
        return code is self._source

    def reads(self) -> Reads | None:
        """Return the attributes of the module on which the code compiled so far depends, or None if unknown."""
        return self._reads or None

    def values(self) -> list[tuple[str, Any]]:
        """Return the expressions of the last recorded guards, as Dynamo writes them, and their values."""
        return [(str(guard.orig_guard.name), guard.value) for guard in self.guards if guard.has_value]

    def note_code(self, source: types.CodeType, code: types.CodeType, arguments: Mapping[str, Any]) -> None:
        """Keep the facts about code just compiled from `source`, and release the guards, which hold the inputs."""
        if not self.is_of(source) or self.own is None:
            self._reads = None  # parts of it read attributes by other names
        else:
            for path, names in reads_of(self.guards, self.own).items():
                if self._reads is not None:
                    known = self._reads.setdefault(path, set())
                    self._reads[path] = None if known is None or names is None else {*known, *names}
        if self.is_of(source):
            broke, scope = dynamo.count_graph_breaks() != self._breaks, self._function.__globals__
            _KNOWN[code] = facts_of(self.guards, self.own, arguments, broke=broke, scope=scope)
        self.guards = []

    def path(self, steady: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Finish) -> Call:
        """Return the fastest callable for calls of this signature, after a call through Dynamo (`steady`).

        The arguments are in their state after that call. `before` is the result of `prepare_bypass` before it.
        """
        bypass = before(args, kwargs)
        return steady if bypass is None else fast_path(steady, bypass, self.prepare_bypass)

    def prepare_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish:
        """Inspect a call's arguments before it, and return a function that finds its bypass after it."""
        own = [*self._owner.parameters(), *self._owner.buffers()] if isinstance(self._owner, torch.nn.Module) else []
        versions, own_versions = _writes_to(pytree.tensors((args, dict(kwargs)))), _writes_to(own)

        def find(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastPath | None:
            self.reason = self.find_refusal(args, kwargs) or ""
            if not self.reason and _writes_to(pytree.tensors((args, dict(kwargs)))) != versions:
                self.reason = "it writes to its inputs, which may share memory"
            if not self.reason and _writes_to(own) != own_versions:
                self.reason = "it writes to its own tensors, and an input may be one of them"
            return None if self.reason else self._find_fast_path(args, kwargs)

        return find

    def _find_fast_path(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastPath | None:
        """Return the bypass to the code object for this call, or None, with `reason`, if there is none."""
        arguments, _, local = _bound(self._function, self._owner, args, kwargs)
        # The code may have been compiled for another module of the class.
        code = next((entry.code for entry in self._entries() if entry.guard_manager.check(local)), None)
        facts = _KNOWN.get(code) if code is not None else None
        if code is None or facts is None:
            self.reason = "its code was compiled outside of this plan, so its guards are unknown"
        elif missing := facts.needed - arguments.keys():
            self.reason = f"it depends on {min(missing)}, which was left to its default"
        else:
            self.reason = facts.reason
        if self.reason or code is None or facts is None:
            return None
        function = self._function
        _call_natively(code, function.__globals__)
        inner = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        inner.__kwdefaults__ = function.__kwdefaults__
        holds = make_constants_check(facts.constants, function.__globals__)
        if not isinstance(self._owner, torch.nn.Module):
            return make_fast_path(inner, holds)
        unchanged = make_quick_check(self._owner, facts.reads)
        both = unchanged if holds is None else lambda: unchanged() and holds()
        return make_fast_path(types.MethodType(inner, self._owner), both)

    def find_refusal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return a reason why this call can have no bypass, whatever its guards."""
        function, owner = self._function, self._owner
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            return "it is not a plain function or method"
        if owner is not None and not isinstance(owner, torch.nn.Module):
            return f"it is a method of {type(owner).__qualname__}, which is not a module"
        if torch.is_grad_enabled():
            return "gradients are enabled, and requires_grad of tensors may change"
        tensors = pytree.tensors((args, dict(kwargs)))
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or not is_strided(t) for t in tensors):
            return "an input is nested, sparse or of a tensor subclass, which a signature does not cover fully"
        if any(t.is_complex() for t in tensors):
            return "an input is complex, and may be conjugated lazily"
        opaque = opaque_leaves((args, dict(kwargs)))
        return f"an input holds {opaque[0]}" if opaque else None

    def find_uncovered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], guards: Sequence[Any]) -> str | None:
        """Return the place of a guard that neither a call's signature nor the module guard covers."""
        arguments, own, _ = _bound(self._function, self._owner, args, kwargs)
        return next((name_of(guard) for guard in guards if not is_covered(guard, own, arguments)), None)

    def _entries(self) -> list[Any]:
        """List Dynamo's compilations of this code by this backend, in the order in which it tries them."""
        entries = [] if self._source is None else dynamo.list_cache_entries(self._source)
        return [entry for entry in entries if getattr(entry, "backend", self.backend) == self.backend]


def _call_natively(code: types.CodeType, scope: dict[str, Any]) -> None:
    """Have compiled code call what is native without the wrapper by which Dynamo keeps itself from tracing Python."""
    for name in code.co_names:
        native = getattr(scope.get(name), dynamo.WRAPPED, None)
        if getattr(native, "is_native", False):
            scope[name] = native


_KNOWN: weakref.WeakKeyDictionary[types.CodeType, CodeFacts] = weakref.WeakKeyDictionary()
"""The facts about compiled code."""


def facts_of(
    guards: Sequence[Any],
    own: str | None,
    arguments: Mapping[str, Any],
    *,
    broke: bool,
    scope: Mapping[str, Any] | None = None,
) -> CodeFacts:
    """Return the facts about code by all of its guards.

    Args:
        guards: all of them.
        own: the parameter for the module.
        arguments: of the call, by parameter.
        broke: whether the graph breaks.
        scope: the globals of the function.
    """
    arguments = {name: value for name, value in arguments.items() if name != own}
    uncovered = [guard for guard in guards if not is_covered(guard, own, arguments)]
    constants = find_constants([one for one in uncovered if not _OF_TORCH.search(name_of(one))], scope or {})
    left = next((name_of(guard) for guard in uncovered if id(guard) not in constants), None)
    if left is not None:
        return CodeFacts(f"it depends on {left}")
    if broke:
        return CodeFacts("the graph breaks, and the code after a break needs Dynamo's guards")
    needed = {root for guard in guards if (root := re.split(r"\W", name_of(guard), maxsplit=1)[0]) in arguments}
    return CodeFacts("", frozenset(needed), reads_of(guards, own), tuple(dict.fromkeys(constants.values())))


def reads_of(guards: Sequence[Any], own: str | None) -> dict[tuple[str, ...], set[str] | None]:
    """Return the attributes that guards read of each module inside the one that `own` names."""
    reads: dict[tuple[str, ...], set[str] | None] = {}
    for guard in guards:
        place = (
            re.fullmatch(rf"{re.escape(own)}((?:\._modules\['[^']*'\])*)(?:\.(\w+))?", name_of(guard)) if own else None
        )
        if place is None:
            continue
        path = tuple(re.findall(r"\['([^']*)'\]", place[1]))
        name = place[2]
        if guard.guard_type in _ATTRIBUTE_GUARDS:
            name = _attribute_of(guard) or name
            if name is None:  # any attribute
                reads[path] = None
        names = reads.setdefault(path, set())
        if names is not None and name is not None:
            names.add(name)
    return reads


def _attribute_of(guard: Any) -> str | None:
    """Return the attribute that a guard asks for, or None if its place ends with it, as before torch 2.12."""
    keywords: dict[str, str] = getattr(guard.orig_guard.create_fn, "keywords", None) or {}
    return keywords.get("attr")


def is_covered(guard: Any, own: str | None, arguments: Mapping[str, Any]) -> bool:
    """Whether the signature, the module guard or the checks above notice every change that this guard notices."""
    name = name_of(guard)
    if not name:  # settings of PyTorch: grad mode, determinism, default dtype and device
        return True
    if _CODE_OF.search(name):
        return True
    if name.startswith(("type(", "dict(type(")):  # a class's code, or the dict of it. The rest of it is data
        return isinstance(guard.value, _CODE) or guard.guard_type == "TYPE_MATCH" or name.endswith(".__dict__)")
    if guard.is_global:
        if isinstance(guard.value, _CODE) or name == _FASTPATH or _is_name_of(guard.value, name):
            return True
        return _OF_TORCH.search(name) is not None and not is_frozen(guard.value)  # a plain value there is a setting
    root = re.match(r"\w+", name)
    if root and root[0] in arguments:
        return guard.guard_type not in _ATTRIBUTE_GUARDS and _is_in_signature(name[root.end() :], arguments[root[0]])
    if own is None or not re.fullmatch(re.escape(own) + _INSIDE, name):
        return False
    attribute = name.rpartition(".")[2]
    if name == own or attribute.startswith(("_modules", "_parameters", "_buffers", "_forward", "_backward")):
        return True
    if guard.guard_type == "HASATTR" and _attribute_of(guard) is None:
        return True  # `reads_of` notes the attribute
    return is_frozen(guard.value) or isinstance(guard.value, _CODE)


def _is_name_of(value: Any, place: str) -> bool:
    """Whether a global is the very name that PyTorch has for a value of its own, such as `torch.float32`."""
    is_own = isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
    name = str(value).removeprefix("torch.")
    return is_own and place in (f"G['torch'].{name}", f"G['__import_torch'].{name}")


def _is_in_signature(place: str, value: Any) -> bool:
    """Whether a signature covers a place in an argument: the argument, a leaf, or a container of leaves.

    It does not cover a tensor's attributes, nor an object's private ones.
    """
    below = re.compile(re.escape(place) + r"(?=[.\[]|$)")
    return not place or any(below.match(leaf) for leaf, _ in pytree.list_named_leaves(value))


def is_frozen(value: Any) -> bool:
    """Whether nothing in a value can change."""
    return is_plain(value) or (isinstance(value, tuple) and all(map(is_frozen, value)))


def name_of(guard: Any) -> str:
    """Return the guard's place as Dynamo writes it, without the marks for local variables."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", str(guard.name))


def forget_tensors(guards: Sequence[Any]) -> None:
    """Have Dynamo's guards forget their tensors, which are set again.

    With a filter, all guards are built twice. `Guard.set_export_info` checks by `in`, and so by `==`, whether the
    object is that of the first time. A guard on a NumPy array has a new tensor each time, and two live tensors compare
    element by element. That raised an error (torch 2.11 to 2.14).
    """
    for guard in guards:
        guarded = getattr(guard.orig_guard, "obj_weakref", None)
        if isinstance(guarded, weakref.ref) and isinstance(guarded(), torch.Tensor):
            guard.orig_guard.obj_weakref = None


def _writes_to(tensors: list[torch.Tensor]) -> list[int | None]:
    return [*map(count_writes, tensors)]


def _bound(
    function: types.FunctionType, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None, dict[str, Any]]:
    """Return the values of parameters in a call's signature, the parameter for the owner, and all values.

    A default value is not in the signature, and may be an object that changes.
    """
    signature = inspect.signature(function)
    bound = signature.bind(*((owner, *args) if owner is not None else args), **kwargs)
    own = next(iter(signature.parameters)) if owner is not None else None
    defaults = {name: p.default for name, p in signature.parameters.items() if name not in bound.arguments}
    arguments = {*bound.arguments, *(name for name, value in defaults.items() if is_frozen(value))} - {own or ""}
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in arguments}, own, dict(bound.arguments)
