"""The straight way into compiled code: Dynamo's code for a call, without its look-up and without its guards.

On every call `torch.compile` looks up its compiled code and checks the guards. There are hundreds for a model of some
layers (`benchmarks/dispatch.py` measures it). Most of them repeat checks of the inputs' signature, and of whether the
module changed (`ModuleGuard`). If these two cover every guard that Dynamo set, the compiled code object is called
itself. If a single one is left over (a global number, an attribute of an attribute, a closure), Dynamo's own way stays.

Source: PyTorch's `guard_filter_fn`, which is told every guard, and its debugging access to the compiled code objects.
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

from torchwise.compile.guards.dynamo_guards import forget_tensors, is_covered, is_frozen, name_of, reads_of
from torchwise.compile.guards.fast_module_guard import Reads, make_quick_check
from torchwise.compile.retry_pace import Pace
from torchwise.compile.signature import is_strided, opaque_leaves
from torchwise.workload import pytree

Way = Callable[..., Any]

MAX_STATES = 4
"""States of a module and of PyTorch's settings whose straight ways are kept, for each kind of call."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The facts about a compiled code object.

    Attributes:
        reason: why it may never be called straight, or "" if it may.
        needed: parameters that must be given, not left to a default.
        reads: the attributes that its guards read of each module inside the owner (`Reads`).
    """

    reason: str
    needed: frozenset[str] = frozenset()
    reads: Reads = field(default_factory=dict)


class GuardBypass:
    """Finds the straight way for the calls of one function or bound method.

    Attributes:
        reason: why the last call looked at has none, or "" if it has.
        own: the parameter for the module that owns the method, or None for a function.
        guards: those of the last compilation, until its code is known.
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
        self.reason = "it was not compiled yet"
        names = self._source.co_varnames if isinstance(self._owner, torch.nn.Module) and self._source else ()
        self.own = names[0] if names else None

    def guard_filter(self, guards: Sequence[Any]) -> list[bool]:
        """Take note of Dynamo's guards, and keep all of them (as `guard_filter_fn` of `torch.compile`)."""
        self.guards = list(guards)  # a compilation that begins anew makes them again
        forget_tensors(guards)
        return [True] * len(guards)

    def begin(self) -> None:
        """Begin anew, before a frame is compiled."""
        self.guards = []
        self._breaks = _graph_breaks()

    def is_of(self, code: types.CodeType) -> bool:
        """Whether it is the code that was given, and not a part of it that Dynamo compiles apart."""
        return code is self._source

    def reads(self) -> Reads | None:
        """Return the attributes of the module that any code compiled so far depends on, or None if it may be any."""
        return self._reads or None

    def values(self) -> list[tuple[str, Any]]:
        """Return the expressions of the guards noted last, as Dynamo writes them, and their values."""
        return [(str(guard.orig_guard.name), guard.value) for guard in self.guards if guard.has_value]

    def note_code(self, source: types.CodeType, code: types.CodeType, given: Mapping[str, Any]) -> None:
        """Keep the facts about code that was just compiled, and let go of the guards, which hold the inputs.

        Args:
            source: the original code.
            code: the code compiled from it.
            given: all parameters.
        """
        if not self.is_of(source) or self.own is None:
            self._reads = None  # parts of it read attributes by other names
        else:
            for path, names in reads_of(self.guards, self.own).items():
                if self._reads is not None:
                    known = self._reads.setdefault(path, set())
                    self._reads[path] = None if known is None or names is None else {*known, *names}
        if self.is_of(source):
            _KNOWN[code] = facts_of(self.guards, self.own, given, broke=_graph_breaks() != self._breaks)
        self.guards = []

    def path(self, steady: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: Finish) -> Way:
        """Return the quickest way for calls of this signature, which was just answered by Dynamo's own way.

        Args:
            steady: Dynamo's own way.
            args: of the call, as they are after it.
            kwargs: likewise.
            before: the result of `prepare_bypass` before the call.
        """
        found = before(args, kwargs)
        return steady if found is None else fast_path(steady, found, self.prepare_bypass)

    def prepare_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish:
        """Look at a call's arguments before it, and return a function that later finds its straight way."""
        own = [*self._owner.parameters(), *self._owner.buffers()] if isinstance(self._owner, torch.nn.Module) else []
        versions, own_versions = _writes_to(pytree.tensors((args, dict(kwargs)))), _writes_to(own)

        def find(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastPath | None:
            self.reason = self.find_refusal(args, kwargs) or ""
            if not self.reason and _writes_to(pytree.tensors((args, dict(kwargs)))) != versions:
                self.reason = "it writes to its inputs, which may overlap"
            if not self.reason and _writes_to(own) != own_versions:
                self.reason = "it writes to its own tensors, and an input may be one of them"
            return None if self.reason else self._aim(args, kwargs)

        return find

    def _aim(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastPath | None:
        """Return the code object that answers this call, if it may be called itself, else None, with `reason`."""
        given, _, local = _bound(self._function, self._owner, args, kwargs)
        # The code may have been compiled for another module of the class.
        code = next((entry.code for entry in self._entries() if entry.guard_manager.check(local)), None)
        facts = _KNOWN.get(code) if code is not None else None
        if code is None or facts is None:
            self.reason = "what serves it was compiled elsewhere, and its guards are not known"
        elif missing := facts.needed - given.keys():
            self.reason = f"it depends on {min(missing)}, which was not given"
        else:
            self.reason = facts.reason
        if self.reason or code is None or facts is None:
            return None
        function = self._function
        inner = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        inner.__kwdefaults__ = function.__kwdefaults__
        if not isinstance(self._owner, torch.nn.Module):
            return aim(inner, None)
        return aim(types.MethodType(inner, self._owner), make_quick_check(self._owner, facts.reads))

    def find_refusal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return a reason against any straight way for this call, with any guards."""
        function, owner = self._function, self._owner
        if not isinstance(function, types.FunctionType) or function.__code__.co_freevars:
            return "it is no plain function or method"
        if owner is not None and not isinstance(owner, torch.nn.Module):
            return f"it is a method of {type(owner).__qualname__}, which is no module"
        if torch.is_grad_enabled():
            return "gradients are enabled, and what needs one may change"
        tensors = pytree.tensors((args, dict(kwargs)))
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or not is_strided(t) for t in tensors):
            return "an input is nested, sparse or of a class of its own, and a signature does not tell all of it"
        if any(t.is_complex() for t in tensors):
            return "an input is complex, and may be conjugated lazily"
        opaque = opaque_leaves((args, dict(kwargs)))
        return f"an input holds {opaque[0]}" if opaque else None

    def find_uncovered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], guards: Sequence[Any]) -> str | None:
        """Return the place of a guard that neither a call's signature nor a look at the module covers."""
        given, own, _ = _bound(self._function, self._owner, args, kwargs)
        return next((name_of(guard) for guard in guards if not is_covered(guard, own, given)), None)

    def _entries(self) -> list[Any]:
        """List Dynamo's compilations of this code by this backend, in the order in which it tries them."""
        from torch._C._dynamo import eval_frame

        look: Callable[[types.CodeType], list[Any]] = getattr(eval_frame, "_debug_get_cache_entry_list", lambda _: [])
        entries = [] if self._source is None else look(self._source)
        return [entry for entry in entries if getattr(entry, "backend", self.backend) == self.backend]


_KNOWN: weakref.WeakKeyDictionary[types.CodeType, CodeFacts] = weakref.WeakKeyDictionary()
"""The facts about compiled code."""


def facts_of(guards: Sequence[Any], own: str | None, given: Mapping[str, Any], *, broke: bool) -> CodeFacts:
    """Return the facts about code by its guards.

    Args:
        guards: all of them.
        own: the parameter for the module.
        given: all parameters.
        broke: whether the graph broke.
    """
    given = {name: value for name, value in given.items() if name != own}
    asked = next((name_of(guard) for guard in guards if not is_covered(guard, own, given)), None)
    if asked is not None:
        return CodeFacts(f"it depends on {asked}")
    if broke:
        return CodeFacts("the graph breaks, and what follows is compiled on Dynamo's own way only")
    needed = {root for guard in guards if (root := re.split(r"\W", name_of(guard), maxsplit=1)[0]) in given}
    return CodeFacts("", frozenset(needed), reads_of(guards, own))


def _graph_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def _writes_to(tensors: list[torch.Tensor]) -> list[int]:
    return [t._version for t in tensors if not t.is_inference()]  # such tensors keep no count


def _bound(
    function: types.FunctionType, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None, dict[str, Any]]:
    """Return the values of parameters in a call's signature, the name of the owner's own, and all values.

    A default that is left out is not in the signature, and may be an object that changes.
    """
    signature = inspect.signature(function)
    bound = signature.bind(*((owner, *args) if owner is not None else args), **kwargs)
    own = next(iter(signature.parameters)) if owner is not None else None
    defaults = {name: p.default for name, p in signature.parameters.items() if name not in bound.arguments}
    given = {*bound.arguments, *(name for name, value in defaults.items() if is_frozen(value))} - {own or ""}
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in given}, own, dict(bound.arguments)


@dataclass(frozen=True, slots=True)
class FastPath:
    """A straight way, with checks that it may be taken: that all is as it was when it was found."""

    straight: Way
    settings: Callable[[], bool]
    fastpath: bool
    modes: list[Any]
    unchanged: Callable[[], bool]

    def holds(self) -> bool:
        """Whether it may be taken now."""
        is_set = self.settings() and torch.backends.mha.get_fastpath_enabled() is self.fastpath
        return is_set and self.unchanged() and _function_modes() == self.modes


Finish = Callable[[tuple[Any, ...], Mapping[str, Any]], FastPath | None]
"""Finds the straight way for a call that was answered, or None if there is none."""


def aim(straight: Way, unchanged: Callable[[], bool] | None) -> FastPath:
    """Look at PyTorch's present settings and modes: for these, `straight` may be taken."""
    from torch._C._dynamo.guards import GlobalStateGuard

    modes = _function_modes()  # such as the mode of `torch.device(...)` as a context, or `torch.set_default_device`
    fastpath = torch.backends.mha.get_fastpath_enabled()
    return FastPath(straight, GlobalStateGuard().check, fastpath, modes, unchanged or _always)


def fast_path(steady: Way, aimed: FastPath, look: Callable[[tuple[Any, ...], Mapping[str, Any]], Finish]) -> Way:
    """Return the straight way for as long as neither PyTorch's settings nor the module change, and else `steady`.

    After a change it is found again, when a call was answered by `steady`. Those for the last few states are kept, as a
    program may go to and fro. If changes come one upon the other, no more than a share of the time is spent on finding
    it (`Pace`).
    """
    stacked, fastpath_now = torch._C._len_torch_function_stack, torch.backends.mha.get_fastpath_enabled
    pace = Pace()
    current = _unpack(aimed)
    known = [aimed]  # the current one is the first

    def call(*args: Any, **kwargs: Any) -> Any:
        straight, settings, fastpath, count, unchanged, modes = current
        if not settings() or fastpath_now() is not fastpath:
            return call_after_change(*args, **kwargs)
        if not unchanged() or stacked() != count or (count and _function_modes() != modes):
            return call_after_change(*args, **kwargs)
        return straight(*args, **kwargs)

    def call_after_change(*args: Any, **kwargs: Any) -> Any:
        for other in known[1:]:
            if other.holds():
                take(other)
                return other.straight(*args, **kwargs)
        if not pace.is_due():
            return steady(*args, **kwargs)
        find = look(args, kwargs)
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


def _unpack(aimed: FastPath) -> tuple[Any, ...]:
    return aimed.straight, aimed.settings, aimed.fastpath, len(aimed.modes), aimed.unchanged, aimed.modes


def _always() -> bool:
    return True


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
