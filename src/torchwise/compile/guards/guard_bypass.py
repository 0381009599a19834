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
from torchwise._torch.dispatch import FUNCTION_MODES, list_function_modes
from torchwise._torch.guards import make_settings_check
from torchwise.compile.guards.dynamo_guards import forget_tensors, is_covered, is_frozen, name_of, reads_of
from torchwise.compile.guards.module_guard import Reads, make_quick_check
from torchwise.compile.recompiles import Pace
from torchwise.compile.signature import is_strided, opaque_leaves
from torchwise.workload import pytree
from torchwise.workload.layouts import count_writes

Call = Callable[..., Any]

MAX_STATES = 4
"""Maximum number of kept bypasses for each signature: one for each state of the module and of PyTorch's settings."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The facts about a compiled code object.

    Attributes:
        reason: why it may never be called directly, or "" if it may.
        needed: parameters that must be passed, not left to a default.
        reads: the attributes that its guards read of each module inside the owner (`Reads`).
    """

    reason: str
    needed: frozenset[str] = frozenset()
    reads: Reads = field(default_factory=dict)


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
        """Keep the facts about code that was just compiled, and release the guards, which hold the inputs.

        Args:
            source: the original code.
            code: the code compiled from it.
            arguments: the values of all parameters.
        """
        if not self.is_of(source) or self.own is None:
            self._reads = None  # parts of it read attributes by other names
        else:
            for path, names in reads_of(self.guards, self.own).items():
                if self._reads is not None:
                    known = self._reads.setdefault(path, set())
                    self._reads[path] = None if known is None or names is None else {*known, *names}
        if self.is_of(source):
            _KNOWN[code] = facts_of(self.guards, self.own, arguments, broke=dynamo.count_graph_breaks() != self._breaks)
        self.guards = []

    def path(self, steady: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Finish) -> Call:
        """Return the fastest callable for calls of this signature, after a call through Dynamo.

        Args:
            steady: calls through Dynamo.
            args: positional arguments of the call, in their state after it.
            kwargs: keyword arguments of the call, in their state after it.
            before: the result of `prepare_bypass` before the call.
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
        inner = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        inner.__kwdefaults__ = function.__kwdefaults__
        if not isinstance(self._owner, torch.nn.Module):
            return make_fast_path(inner, None)
        return make_fast_path(types.MethodType(inner, self._owner), make_quick_check(self._owner, facts.reads))

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


_KNOWN: weakref.WeakKeyDictionary[types.CodeType, CodeFacts] = weakref.WeakKeyDictionary()
"""The facts about compiled code."""


def facts_of(guards: Sequence[Any], own: str | None, arguments: Mapping[str, Any], *, broke: bool) -> CodeFacts:
    """Return the facts about code by its guards.

    Args:
        guards: all of its guards.
        own: the parameter for the module.
        arguments: the values of all parameters.
        broke: whether the graph broke.
    """
    arguments = {name: value for name, value in arguments.items() if name != own}
    uncovered = next((name_of(guard) for guard in guards if not is_covered(guard, own, arguments)), None)
    if uncovered is not None:
        return CodeFacts(f"it depends on {uncovered}")
    if broke:
        return CodeFacts("the graph breaks, and the code after a break needs Dynamo's guards")
    needed = {root for guard in guards if (root := re.split(r"\W", name_of(guard), maxsplit=1)[0]) in arguments}
    return CodeFacts("", frozenset(needed), reads_of(guards, own))


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


@dataclass(frozen=True, slots=True)
class FastPath:
    """A direct call of compiled code, with checks that nothing changed since it was found."""

    call_unguarded: Call
    settings: Callable[[], bool]
    fastpath: bool
    modes: list[Any]
    unchanged: Callable[[], bool]

    def holds(self) -> bool:
        """Whether it may be used now."""
        is_set = self.settings() and torch.backends.mha.get_fastpath_enabled() is self.fastpath
        return is_set and self.unchanged() and list_function_modes() == self.modes


Finish = Callable[[tuple[Any, ...], Mapping[str, Any]], FastPath | None]
"""Finds the bypass for an answered call, or None if there is none."""


def make_fast_path(call_unguarded: Call, unchanged: Callable[[], bool] | None) -> FastPath:
    """Return a fast path to `call_unguarded` that is valid for PyTorch's present settings and modes."""
    modes = list_function_modes()  # such as the mode of `torch.device(...)` as a context, or `torch.set_default_device`
    fastpath = torch.backends.mha.get_fastpath_enabled()
    return FastPath(call_unguarded, make_settings_check(), fastpath, modes, unchanged or _always)


def fast_path(steady: Call, path: FastPath, prepare: Callable[[tuple[Any, ...], Mapping[str, Any]], Finish]) -> Call:
    """Return a callable that uses the bypass while PyTorch's settings and the module are unchanged, or else `steady`.

    After a change a new bypass is found after a call of `steady`. Bypasses for the last few states are kept, as a
    program may switch between states. With frequent changes, only a share of the time is spent on the search (`Pace`).
    """
    stacked, fastpath_now = FUNCTION_MODES.get(), torch.backends.mha.get_fastpath_enabled
    pace = Pace()
    current = _unpack(path)
    known = [path]  # the current one is the first

    def call(*args: Any, **kwargs: Any) -> Any:
        call_unguarded, settings, fastpath, count, unchanged, modes = current
        if not settings() or fastpath_now() is not fastpath:
            return call_after_change(*args, **kwargs)
        if not unchanged() or stacked() != count or (count and list_function_modes() != modes):
            return call_after_change(*args, **kwargs)
        return call_unguarded(*args, **kwargs)

    def call_after_change(*args: Any, **kwargs: Any) -> Any:
        for other in known[1:]:
            if other.holds():
                take(other)
                return other.call_unguarded(*args, **kwargs)
        if not pace.is_due():
            return steady(*args, **kwargs)
        find = prepare(args, kwargs)
        answer = steady(*args, **kwargs)
        with pace:
            try:
                found = find(args, kwargs)
            except Exception:  # the call is answered, with or without this error
                found = None
        if found is not None:
            take(found)
        return answer

    def take(one: FastPath) -> None:
        nonlocal current, known
        known = [one, *(other for other in known if other is not one)][:MAX_STATES]
        current = _unpack(one)

    return call


def _unpack(path: FastPath) -> tuple[Any, ...]:
    return path.call_unguarded, path.settings, path.fastpath, len(path.modes), path.unchanged, path.modes


def _always() -> bool:
    return True
