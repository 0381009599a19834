"""Drop-in wrappers: an optimised module with the original's attributes and methods, and the same for functions.

Also here: give a wrapper's class the methods of the original's class, as Python and PyTorch take methods from the
class.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise.compile.forward_entry import BY_TORCH, DOES_NO_MORE, calls_forward_alone
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.staleness import stale_because
from torchwise.runtime.statistics import Statistics
from torchwise.runtime.step import OptimizedStep

SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)
"""Attributes that a wrapper has of its own, as does a copy of it."""

FORWARD_CALLED = Fallback(FallbackReason.FORWARD_CALLED)


class _Entered(threading.local):
    """The wrappers whose calls are under way in this thread. Between their hooks, `forward` is part of a call."""

    def __init__(self) -> None:
        self.wrappers: list[OptimizedModule] = []


_entered = _Entered()


class OptimizedModule(torch.nn.Module):
    """Runs a module by a decided plan. Every parameter, buffer, submodule and attribute is the original's own.

    Checkpoints carry no prefix and load into the bare module and back. The original answers the calls that the plan
    cannot answer, or fails at (`Dispatcher`). `torchwise.testing.served` has this contract as tests.
    """

    def __new__(cls, original: torch.nn.Module, *_: Any, **__: Any) -> OptimizedModule:
        """Make one of a class that also has the methods that the original's class overrides."""
        made: OptimizedModule = super().__new__(like(cls, type(original)))
        return made

    def __init__(
        self,
        original: torch.nn.Module,
        decision: Decision,
        refusal: Fallback | None = None,
        *,
        borrow: bool = False,
        canary: int | None = None,
    ) -> None:
        super().__init__()
        self.__dict__["_torchwise"] = Dispatcher(original, decision, refusal, borrow=borrow, canary=canary)
        # The very same dictionaries: both see a registration, replacement or move through either.
        for shared in SHARED:
            self.__dict__[shared] = getattr(original, shared)  # which TorchScript has, but not among its attributes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The original's class, so that `isinstance` holds and libraries know the model. `type` gives the wrapper's."""
        return type(self._dispatcher.original) if "_torchwise" in self.__dict__ else OptimizedModule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does, directly if no hook of this wrapper's own must run."""
        own = self.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            _entered.wrappers.append(self)
            try:
                return super().__call__(*args, **kwargs)
            finally:
                _entered.wrappers.pop()
        dispatcher = own["_torchwise"]
        if dispatcher.is_eager_only:  # which it would see itself, a Python call later
            dispatcher.statistics.stayed += 1
            original = dispatcher.original
            if DOES_NO_MORE and type(original).__call__ is BY_TORCH and original._compiled_call_impl is None:
                return original._call_impl(*args, **kwargs)  # a Python call less, as this is one more
            return original(*args, **kwargs)
        return dispatcher(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original's forward does, or within a call of this as its call does."""
        dispatcher = self._dispatcher
        if any(self is wrapper for wrapper in _entered.wrappers):
            return dispatcher(*args, **kwargs)
        original: Any = dispatcher.original
        if calls_forward_alone(original):
            return dispatcher(*args, **kwargs)
        dispatcher.statistics.count(FORWARD_CALLED)
        return original.forward(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Have PyTorch compile the original, which answers from then on."""
        self._dispatcher.original.compile(*args, **kwargs)  # type: ignore[attr-defined]

    @property
    def decision(self) -> Decision:
        """The decision for this model."""
        return self._dispatcher.decision

    @property
    def statistics(self) -> Statistics:
        """The counts of the calls so far."""
        return self._dispatcher.statistics

    @property
    def _dispatcher(self) -> Dispatcher:
        dispatcher: Dispatcher = self.__dict__["_torchwise"]
        return dispatcher

    @property
    def training(self) -> bool:
        """The original's mode, whichever of the two it is set on."""
        own: Dispatcher | None = self.__dict__.get("_torchwise")
        # A frozen module of TorchScript has no mode, and behaves as in eval mode.
        return own is None or bool(getattr(own.original, "training", False))

    @training.setter
    def training(self, mode: bool) -> None:
        if "_torchwise" in self.__dict__:  # or it is `Module.__init__`, before there is an original
            self._dispatcher.original.training = mode  # type: ignore[attr-defined]

    def train(self, mode: bool = True) -> OptimizedModule:
        """Set the original's mode, and so this one's."""
        self._dispatcher.original.train(mode)  # type: ignore[attr-defined]
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the original's own state, unprefixed."""
        state: dict[str, Any] = self._dispatcher.original.state_dict(*args, **kwargs)  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the original."""
        return self._dispatcher.original.load_state_dict(state_dict, *args, **kwargs)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        """Return the original's attribute. Python only calls this for attributes that this object lacks."""
        if name == "_torchwise":  # while unpickling, before there is an original
            raise AttributeError(name)
        return getattr(self._dispatcher.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute on the original, whose code reads it, except marks of this wrapper's own hooks."""
        if "_torchwise" in self.__dict__ and name != "_is_full_backward_hook":
            setattr(self._dispatcher.original, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Delete the original's attribute."""
        delattr(self._dispatcher.original, name)

    def _replicate_for_data_parallel(self) -> Any:
        """Replicate the original: changes that this makes to a module would go through to it."""
        return self._dispatcher.original._replicate_for_data_parallel()  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the wrapper, even if the original defines a way of its own."""
        rebuilt, parts = self.__reduce__()
        memo[id(self)] = rebuilt(*copy.deepcopy(parts, memo))
        return memo[id(self)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original and the decision: code is compiled again."""
        own = self._dispatcher
        hooks = {name: found for name in HOOKS if (found := self.__dict__[name])}
        return (_rebuilt, (OptimizedModule, own.original, own.decision, own.borrow, own.canary, own.refusal, hooks))

    def _get_name(self) -> str:
        """Return the wrapper's name for `repr`."""
        return f"Optimized{type(self._dispatcher.original).__name__}"

    def extra_repr(self) -> str:
        """Say by which plan it runs."""
        return f"plan: {self.decision.plan}"


class OptimizedFunction:
    """Runs a function by a decided plan. See `Dispatcher`."""

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        refusal: Fallback | None = None,
        *,
        borrow: bool = False,
        canary: int | None = None,
    ) -> None:
        functools.update_wrapper(self, original, updated=())
        self._dispatcher = Dispatcher(original, decision, refusal, borrow=borrow, canary=canary)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""
        dispatcher = self._dispatcher
        if dispatcher.is_eager_only:  # as a module's
            dispatcher.statistics.stayed += 1
            return dispatcher.original(*args, **kwargs)
        return dispatcher(*args, **kwargs)

    @property
    def decision(self) -> Decision:
        """The decision for this function."""
        return self._dispatcher.decision

    @property
    def statistics(self) -> Statistics:
        """The counts of the calls so far."""
        return self._dispatcher.statistics

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original and the decision."""
        own = self._dispatcher
        return (_rebuilt, (OptimizedFunction, own.original, own.decision, own.borrow, own.canary, own.refusal))


def _rebuilt(
    kind: type,
    original: Any,
    decision: Decision,
    borrow: bool = False,
    canary: int | None = None,
    refusal: Fallback | str | None = None,
    hooks: Mapping[str, Any] | None = None,
) -> Any:
    """Make a wrapper again from a copy or a pickle, which may have come to another machine: stale is never trusted.

    A plan that was refused or disabled is so in a copy as well.
    """
    stale = stale_because(original, decision)
    effective = Fallback(FallbackReason.STALE_DECISION, stale) if stale else read_fallback(refusal)
    made = kind(original, decision, effective, borrow=borrow, canary=canary)
    vars(made).update(hooks or {})  # the very dictionaries, by which copied handles know their hooks
    return made


def unwrap(optimized: Any) -> Any:
    """Return the original behind an optimised module or function, or any other object as it is."""
    if isinstance(optimized, OptimizedStep):
        return optimized.original
    dispatcher = dispatcher_of(optimized)
    return dispatcher.original if dispatcher is not None else optimized


def freezable(optimized: Any) -> Dispatcher:
    """Return the dispatcher of an optimised module or function, to be frozen.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    dispatcher = dispatcher_of(optimized)
    if dispatcher is None:
        raise InputError(f"it is a {type(optimized).__name__}, but only the result of torchwise.apply can be frozen")
    return dispatcher


def dispatcher_of(optimized: Any) -> Dispatcher | None:
    """Return the dispatcher of an optimised module or function, or None for any other object."""
    own = getattr(optimized, "__dict__", {})
    found = own.get("_torchwise") or own.get("_dispatcher")
    return found if isinstance(found, Dispatcher) else None


CONTAINER = frozenset(
    {"__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__reversed__", "__setitem__"}
)
"""Methods of Sequential, ModuleList and ModuleDict, which Python takes from the class and never from an instance."""

CALLING = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
"""Methods by which a module is called. A wrapper's own hooks run around its call, and the original's within."""


def like(kind: type, original: type) -> type:
    """Return `kind`, or a subclass that forwards the methods that `original` overrides from PyTorch's module.

    They decide how a model moves (`_apply`, `to`), which parameters it has, or that it is a list of modules. Methods
    that `kind` itself defines stay.
    """
    return _make_forwarding_class(kind, _own(kind, original))


def _own(kind: type, original: type) -> tuple[str, ...]:
    mro = original.__mro__
    defined = {name for each in mro[: mro.index(torch.nn.Module)] for name in vars(each)}
    overridden = {name for name in defined if not name.startswith("__") and hasattr(torch.nn.Module, name)}
    found = (overridden | defined & CONTAINER) - set(vars(kind)) - CALLING
    return tuple(sorted(name for name in found if callable(getattr(original, name))))


@functools.cache
def _make_forwarding_class(kind: type, names: tuple[str, ...]) -> type:
    methods = {name: _make_forwarding_method(name) for name in names}
    return type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__}) if methods else kind


def _make_forwarding_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._dispatcher.original
        answer = getattr(original, name)(*args, **kwargs)
        return self if answer is original else answer

    method.__name__ = name
    return method
