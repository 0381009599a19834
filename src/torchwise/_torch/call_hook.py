"""A hook that answers calls of modules: of all, or of some classes.

With classes, the calls of all other modules go straight to PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from torchwise._torch.modules import DOES_NO_MORE, MODULE_CALL

Answer = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Answers a call: it gets the module or function, a callable that answers as before, and the arguments."""


@dataclass(frozen=True)
class CallHook:
    """A hook on calls of modules.

    Attributes:
        answer: answers each call that is not part of another such call.
        classes: the qualified names of the classes whose modules it is for, or None for all modules.
    """

    answer: Answer
    classes: frozenset[str] | None = None


class _Here(threading.local):
    """Whether this thread is inside a call that the hook was told about."""

    within = False


_is_traced = torch.compiler.is_dynamo_compiling
_here = _Here()
_hook: CallHook | None = None
_answer: Answer | None = None
_watched: WeakSet[type] = WeakSet()
"""The classes whose calls go by the hook."""
_replaced: list[tuple[str, Any, Any]] = []
"""The methods of all modules that are replaced while classes are watched: name, own one and former one, if any."""
_is_taken = False
"""Whether the calls of all modules go by the hook."""
_former_call: Callable[..., Any] = MODULE_CALL
"""The call of every module without a hook: PyTorch's own, or one that a library has put in its place."""
_over: Callable[..., Any] | None = None
"""The call that a library has put over `call_with_hook`, and left there."""


def set_call_hook(hook: CallHook | None) -> CallHook | None:
    """Put a hook in the place of the former one, and return that. None gives all calls back to PyTorch.

    A forked process begins without a hook. Dynamo traces through.
    """
    global _hook, _answer
    former, _hook = _hook, hook
    _answer = None if hook is None else hook.answer
    if hook is None or hook.classes is not None:
        _give_calls_back()
    _forget_classes()
    if hook is not None and hook.classes is None:
        take_all_calls()
    elif hook is not None:
        _watch_classes()
    return former


def take_all_calls() -> None:
    """Have the calls of all modules go by the hook, if there is one."""
    global _former_call, _is_taken
    if _is_taken or _hook is None:
        return
    importlib.import_module("torch._dynamo")  # keeps the call that it finds when it is first imported
    _is_taken = True
    if torch.nn.Module.__call__ is not _over:
        _former_call = torch.nn.Module.__call__  # which a library may have put in PyTorch's place
        torch.nn.Module.__call__ = call_with_hook  # type: ignore[method-assign]


def takes_all_calls() -> bool:
    """Whether there is a hook for the modules of all classes, as of a recording."""
    return _hook is not None and _hook.classes is None


def _give_calls_back() -> None:
    global _is_taken, _over
    if torch.nn.Module.__call__ is call_with_hook:
        torch.nn.Module.__call__ = _former_call  # type: ignore[method-assign]
    elif _is_taken:  # a library has put a call over ours, which goes on to call ours
        _over = torch.nn.Module.__call__
    _is_taken = False


def _watch_classes() -> None:
    """Watch the classes of the hook: those that are defined, and each one as soon as it is."""
    pending: list[type] = [torch.nn.Module]
    for cls in pending:
        _watch(cls)
        pending += type.__subclasses__(cls)
    for name, make in (("__init_subclass__", _make_init_subclass), ("__init__", _make_init)):
        former = vars(torch.nn.Module).get(name)
        own = make(former)
        setattr(torch.nn.Module, name, own)
        _replaced.append((name, own, former))


def _make_init_subclass(former: Any) -> Any:
    def notice_class(cls: type, /, **kwargs: Any) -> None:
        if former is None:
            super(torch.nn.Module, cls).__init_subclass__(**kwargs)  # type: ignore[misc]
        else:  # of a library
            former.__get__(None, cls)(**kwargs)
        _watch(cls)

    return classmethod(notice_class)


def _make_init(former: Any) -> Any:
    """Watch a class as a module of it is made: some bases tell of no derived class, and a class may be renamed."""

    @functools.wraps(former)
    def notice_module(module: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_traced():
            _watch(type(module))
        former(module, *args, **kwargs)

    return notice_module


def _watch(cls: Any) -> None:
    """Have calls of a class's modules go by the hook, if it is for them."""
    if _hook is None or _hook.classes is None or cls.__qualname__ not in _hook.classes:
        return
    if any(base in _watched for base in cls.__mro__):  # whose call is inherited, or called in the end
        return
    if cls.__call__ is not torch.nn.Module.__call__ or issubclass(cls, torch.fx.GraphModule):
        take_all_calls()  # its own call, which a `GraphModule` gets later, may change what PyTorch's is given
        return
    try:
        cls.__call__ = WATCHED_CALL
    except Exception:  # its metaclass may refuse in any way, and the class must be defined all the same
        take_all_calls()
        return
    _watched.add(cls)


def _forget_classes() -> None:
    for cls in list(_watched):
        if vars(cls).get("__call__") is WATCHED_CALL:
            with contextlib.suppress(Exception):  # as above: it then calls as PyTorch does
                del cls.__call__
    _watched.clear()
    for name, own, former in _replaced:
        if vars(torch.nn.Module).get(name) is not own:  # a library has put one over it, which goes on to call it
            continue
        if former is None:
            delattr(torch.nn.Module, name)
        else:
            setattr(torch.nn.Module, name, former)
    _replaced.clear()


class _WatchedCall:
    """The call of a watched class.

    It is no function, so that it is no part of the class's code, which a plan is bound to. It is pickled as PyTorch's
    own call: a process that gets the class by value may lack Torchwise.
    """

    def __get__(self, module: Any, _cls: type) -> Callable[..., Any]:
        return _call_watched if module is None else types.MethodType(_call_watched, module)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (torch.nn.Module, "__call__")


WATCHED_CALL: Any = _WatchedCall()


def is_hooked(call: object) -> bool:
    """Return whether a call in a class is PyTorch's own by way of a hook."""
    return call is call_with_hook or call is WATCHED_CALL


def _call_watched(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a module of a watched class, by way of the hook unless this is part of such a call."""
    if _is_traced() or _here.within or _answer is None:
        return torch.nn.Module.__call__(module, *args, **kwargs)
    run = types.MethodType(torch.nn.Module.__call__, module)
    return answer_by_hook(module, run, args, kwargs)


def call_with_hook(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Call any module, by way of the hook unless this is part of such a call."""
    if _is_traced() or _here.within or _answer is None:
        if DOES_NO_MORE and _former_call is MODULE_CALL and module._compiled_call_impl is None:
            return module._call_impl(*args, **kwargs)  # a Python call less for each part of a model
        return _former_call(module, *args, **kwargs)
    return answer_by_hook(module, types.MethodType(_former_call, module), args, kwargs)


def answer_by_hook(thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have the hook answer a call that `run` answers without it, unless this is part of such a call."""
    answer = _answer
    if _is_traced() or _here.within or answer is None:
        return run(*args, **kwargs)
    _here.within = True
    try:
        return answer(thing, run, args, kwargs)
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
