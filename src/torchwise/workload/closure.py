"""Functions that hold on to other things than their arguments, such as a loss that closes over the model."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any


def with_copied_closure(thing: Any, memo: dict[int, Any]) -> Any:
    """Return a function that closes over copies, as `copy.deepcopy` makes them of all else; any other thing as it is.

    Args:
        thing: perhaps a function.
        memo: of `copy.deepcopy`: what was copied already is not copied again.
    """
    if isinstance(thing, functools.partial):  # itself a copy, but of a function none is made there
        return functools.partial(with_copied_closure(thing.func, memo), *thing.args, **thing.keywords)
    if not isinstance(thing, types.FunctionType) or not (
        thing.__closure__ or thing.__defaults__ or thing.__kwdefaults__
    ):
        return thing
    if id(thing) in memo:
        return memo[id(thing)]
    cells = tuple(types.CellType() for _ in thing.__closure__ or ())
    copied = types.FunctionType(thing.__code__, thing.__globals__, thing.__name__, None, cells)
    memo[id(thing)] = copied  # first, for a function may close over itself
    vars(copied).update(vars(thing))
    copied.__qualname__, copied.__module__, copied.__doc__ = thing.__qualname__, thing.__module__, thing.__doc__
    copied.__defaults__ = tuple(_copied(value, memo) for value in thing.__defaults__ or ()) or None
    copied.__kwdefaults__ = {k: _copied(v, memo) for k, v in (thing.__kwdefaults__ or {}).items()} or None
    for cell, held in zip(cells, thing.__closure__ or (), strict=True):
        for content in _content(held):
            cell.cell_contents = _copied(content, memo)
    return copied


def functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """Yield a function and those that it closes over."""
    waiting, seen = [thing], set()
    while waiting:
        function = waiting.pop()
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, types.FunctionType) and id(function) not in seen:
            seen.add(id(function))
            yield function
            waiting += [found for cell in function.__closure__ or () for found in _content(cell)]


def names_of(code: types.CodeType) -> set[str]:
    """Return the names that code looks up, and what is defined in it."""
    inner = (names_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> list[Any]:
    """Return what is in a cell: nothing where its name is not bound yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, types.FunctionType):
        return with_copied_closure(value, memo)
    return value if isinstance(value, types.ModuleType) else with_copied_closure(copy.deepcopy(value, memo), memo)
