"""Find what counts calls behind an object: a model, a function, a training step, a component, or several in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Protocol
from weakref import ref

from torchwise.errors import InputError
from torchwise.runtime.served import served_of
from torchwise.runtime.statistics import Statistics

ITSELF = ""
"""The name of an object that counts its own calls."""


class Monitored(Protocol):
    """Something that counts calls by a plan, and can be kept from compiling."""

    @property
    def counts(self) -> Statistics:
        """The counts of the calls so far."""

    @property
    def plan_name(self) -> str:
        """The plan in use, as text."""

    @property
    def is_frozen(self) -> bool:
        """Whether nothing more may be compiled and captured."""

    def freeze(self) -> None:
        """Compile and capture nothing more."""

    def unfreeze(self) -> None:
        """Compile and capture again, on the calls that need it."""


BEHIND = "_torchwise_behind"
"""The attribute of a function that stands in the place of an original, or of the class of such a module.

It is no attribute of the module itself, as that would get into copies, files and fingerprints.
"""
LISTS = "_list_monitored"
"""A method by which a class of several such objects lists them by name."""


class Behind:
    """The component behind a function, and behind no other: `functools.wraps` copies attributes to others.

    It is kept by the function alone. Where the original is a method, the component reaches the function through the
    method's object, so a table of components would keep all three for ever.
    """

    def __init__(self, function: Callable[..., Any] | None = None, component: Any = None) -> None:
        self._function = ref(function) if function is not None else None
        self._component = component

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as empty: a copy of the function is no component of the program."""
        return Behind, ()

    def find(self, function: object) -> Any:
        """Return the component, or None if it is another function."""
        return self._component if self._function is not None and self._function() is function else None


def find_monitored(thing: Any, predicate: str) -> Mapping[str, Monitored]:
    """Return what counts the calls of an object, by name: `ITSELF`, or the names of its components.

    A manager may have none yet. Ask again later, as plans are swapped and components are registered.

    Args:
        thing: the object.
        predicate: what is asked of it, for the error, such as "can be frozen".

    Raises:
        InputError: Torchwise did not return it.
    """
    lists: Callable[[Any], Mapping[str, Monitored]] | None = getattr(type(thing), LISTS, None)
    if lists is not None:
        return lists(thing)
    itself = served_of(thing) or find_in_place(thing)
    if itself is None:
        raise InputError(
            f"it is of type {type(thing).__name__}, and Torchwise did not make it, but only a result of torchwise."
            f"apply, optimize or compiled, a component or a CompileManager {predicate}"
        )
    return {ITSELF: itself}


def find_in_place(thing: Any) -> Any:
    """Return the component that answers in the place of a function or module, or None."""
    if isinstance(thing, FunctionType):
        behind = vars(thing).get(BEHIND)
        return behind.find(thing) if isinstance(behind, Behind) else None
    return getattr(type(thing), BEHIND, None)
