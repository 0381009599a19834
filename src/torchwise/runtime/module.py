"""Drop-in wrappers: an optimised module with the original's attributes and methods, and the same for functions."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise._torch import native
from torchwise._torch.modules import DOES_NO_MORE
from torchwise.compile.forward_entry import BY_TORCH, calls_forward_alone
from torchwise.records import Decision
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.served import Served, Wrapper, rebuild

CONTAINER = frozenset(
    {"__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__reversed__", "__setitem__"}
)
"""Methods of Sequential, ModuleList and ModuleDict, which Python takes from the class and never from an instance."""
CALLING = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
"""Methods by which a module is called. A wrapper's own hooks run around its call, and the original's within."""

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


_taken: set[type] = set()
"""The classes of wrappers whose calls compiled checks take."""


def _enter(kind: type) -> type:
    """Return a class of wrappers, whose calls compiled checks take where there are any."""
    is_own = kind.__call__ in (OptimizedModule.__call__, OptimizedFunction.__call__)  # and no subclass of a user's
    if kind not in _taken and is_own:
        by_torch = BY_TORCH if DOES_NO_MORE else None
        if native.enter(kind, by_torch, Dispatcher, has_hooks=issubclass(kind, torch.nn.Module)):
            _taken.add(kind)
    return kind


class PlanWrapper(Wrapper):
    """A wrapper around one plan."""

    def __init__(
        self,
        original: Any,
        decision: Decision,
        refusal: Fallback | None = None,
        *,
        borrow: bool = False,
        canary: int | None = None,
    ) -> None:
        self._hold(Dispatcher(original, decision, refusal, borrow=borrow, canary=canary))


class OptimizedModule(PlanWrapper, torch.nn.Module):
    """Runs a module by a decided plan. Every parameter, buffer, submodule and attribute is the original's own.

    Checkpoints carry no prefix and load into the bare module and back. The original answers the calls that the plan
    cannot answer, or fails at (`Dispatcher`). `torchwise.testing.served` has this contract as tests.
    """

    def __new__(cls, original: torch.nn.Module, *_: Any, **__: Any) -> OptimizedModule:
        """Make one of a class that also has the methods that the original's class overrides."""
        made: OptimizedModule = super().__new__(_enter(like(cls, type(original))))
        return made

    def _hold(self, served: Served) -> None:
        torch.nn.Module.__init__(self)
        super()._hold(served)
        # The very same dictionaries: both see a registration, replacement or move through either.
        for shared in SHARED:
            self.__dict__[shared] = getattr(served.original, shared)  # which TorchScript has, but not in its `__dict__`

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
        self._dispatcher.original.compile(*args, **kwargs)

    @property
    def training(self) -> bool:
        """The original's mode, whichever of the two it is set on."""
        own: Served | None = self.__dict__.get("_torchwise")
        # A frozen module of TorchScript has no mode, and behaves as in eval mode.
        return own is None or bool(getattr(own.original, "training", False))

    @training.setter
    def training(self, mode: bool) -> None:
        if "_torchwise" in self.__dict__:  # or it is `Module.__init__`, before there is an original
            self._dispatcher.original.training = mode

    def train(self, mode: bool = True) -> OptimizedModule:
        """Set the original's mode, and so this one's."""
        self._dispatcher.original.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the original's own state, unprefixed."""
        state: dict[str, Any] = self._dispatcher.original.state_dict(*args, **kwargs)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the original."""
        return self._dispatcher.original.load_state_dict(state_dict, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the original's attribute. Python only calls this for attributes that this object lacks."""
        if name in ("_torchwise", "_dispatcher"):  # before there is an original
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
        return self._dispatcher.original._replicate_for_data_parallel()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the wrapper, even if the original defines a way of its own."""
        rebuilt, parts = self.__reduce__()
        memo[id(self)] = rebuilt(*copy.deepcopy(parts, memo))
        return memo[id(self)]

    def _own_state(self) -> dict[str, Any]:
        return {name: found for name in HOOKS if (found := self.__dict__[name])}

    def _get_name(self) -> str:
        """Return the wrapper's name for `repr`."""
        return f"Optimized{type(self._dispatcher.original).__name__}"

    def extra_repr(self) -> str:
        """Say by which plan it runs."""
        return self._dispatcher.describe()  # type: ignore[no-any-return]


class OptimizedFunction(PlanWrapper):
    """Runs a function by a decided plan. See `Dispatcher`."""

    def _hold(self, served: Served) -> None:
        _enter(OptimizedFunction)
        functools.update_wrapper(self, served.original, updated=())
        super()._hold(served)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""
        served = self._torchwise
        if served.is_eager_only:  # as a module's
            served.statistics.stayed += 1
            return served.original(*args, **kwargs)
        return served(*args, **kwargs)

    def __repr__(self) -> str:
        name = getattr(self._dispatcher.original, "__qualname__", type(self._dispatcher.original).__qualname__)
        return f"<OptimizedFunction {name}, {self._dispatcher.describe()}>"


def _rebuilt(kind: type[Wrapper], *parts: Any) -> Any:
    """Make a wrapper again from a pickle of an earlier version, which has the hooks last."""
    return rebuild(kind, Dispatcher.restore, parts[:5], *parts[5:])


def like(kind: type, original: type) -> type:
    """Return `kind`, or a subclass that forwards the methods that `original` overrides from PyTorch's module.

    They decide how a model moves (`_apply`, `to`), which parameters it has, or that it is a list of modules. Methods
    that a wrapper's own classes define stay.
    """
    return _make_forwarding_class(kind, _own(kind, original))


def _own(kind: type, original: type) -> tuple[str, ...]:
    defined, kept = _defined_over_module(original), _defined_over_module(kind)
    overridden = {name for name in defined if not name.startswith("__") and hasattr(torch.nn.Module, name)}
    found = (overridden | defined & CONTAINER) - kept - CALLING
    return tuple(sorted(name for name in found if callable(getattr(original, name))))


def _defined_over_module(kind: type) -> set[str]:
    """Return the names in a class of modules and in its bases before PyTorch's."""
    mro = kind.__mro__
    return {name for each in mro[: mro.index(torch.nn.Module)] for name in vars(each)}


@functools.cache
def _make_forwarding_class(kind: type, names: tuple[str, ...]) -> type:
    methods = {name: _make_forwarding_method(name) for name in names}
    if not methods:
        return kind
    return type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__, "_copied_as": kind})


def _make_forwarding_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._dispatcher.original
        answer = getattr(original, name)(*args, **kwargs)
        return self if answer is original else answer

    method.__name__ = name
    return method
