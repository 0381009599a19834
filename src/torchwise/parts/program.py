"""Putting a part into the program where its original was, so that nothing else in the program changes.

A function is replaced by one that asks the part. A module stays the very object that it is, with its parameters, hooks
and place in the tree: it is given a class of its own, derived from its class, whose `__call__` asks the part (as
`torch.nn.utils.parametrize` does for properties). What the part tunes and compiles is its twin, of the plain class.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from torchwise.errors import InputError
from torchwise.parts.part import Part
from torchwise.parts.twin import twin_of

_parts: WeakKeyDictionary[torch.nn.Module, Part] = WeakKeyDictionary()
"""Not an attribute of the module: what has it would find its way into copies, files and fingerprints."""


def is_part(module: object) -> bool:
    """Whether a module was registered, as a part of whatever manager."""
    return isinstance(module, torch.nn.Module) and module in _parts


def function_of(part: Part) -> Callable[..., Any]:
    """Return what stands in for the part's original, which is no module."""
    original = part.original

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return part.answer(original, args, kwargs)

    return call


def place(module: torch.nn.Module, part: Part) -> None:
    """Let `module` be answered for by `part`, in place.

    Raises:
        InputError: its class cannot be changed, or it is a part already.
    """
    if is_part(module):
        raise InputError(f"this {type(module).__name__} is part {_parts[module].name!r} already: register it once")
    try:
        object.__setattr__(module, "__class__", _asking(type(module)))  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"a {type(module).__name__} cannot be registered in place ({error}): register a function that calls it"
        ) from error
    _parts[module] = part


def place_instances(cls: type[torch.nn.Module], register: Callable[[torch.nn.Module, bool], object]) -> None:
    """Have each instance of `cls` registered as soon as it is made; copies and what is unpickled are plain.

    `register` hears whether the instance is whole: that of a class derived from `cls` may still be in the making.
    """
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        if not is_part(self):  # a class derived from it may be registered as well
            register(self, type(self).__init__ is __init__)

    cls.__init__ = __init__  # type: ignore[method-assign]


@functools.cache
def _asking(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """Return the class derived from `cls` whose instances ask their part; they are copied and pickled as of `cls`."""

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # A class that was put over this one since (parametrisations do) has attributes that the twin has not.
        if torch.compiler.is_compiling() or type(self) is not asking or (part := _parts.get(self)) is None:
            return cls.__call__(self, *args, **kwargs)
        return part.answer(functools.partial(cls.__call__, self), args, kwargs)

    def __reduce_ex__(self: torch.nn.Module, protocol: Any) -> Any:  # noqa: N807
        reduced: Any = twin_of(self, cls).__reduce_ex__(protocol)
        make, given, *rest = reduced
        return operator.call, (make, *given), *rest  # pickle insists that `make` be given the object's own class

    own = {"__call__": __call__, "__reduce_ex__": __reduce_ex__}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    asking = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update({**names, **own}))
    return asking
