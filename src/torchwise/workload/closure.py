"""Functions that hold on to other things than their arguments, such as a loss that closes over the model."""

from __future__ import annotations

import copy
import dis
import functools
import gc
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchwise.errors import WorkloadError

_ATOMS = (bool, int, float, complex, str, bytes, range, types.NoneType, types.EllipsisType, types.BuiltinFunctionType)
"""Types that hold nothing which a copy would not share."""


def with_copied_closure(thing: Any, memo: dict[int, Any]) -> Any:
    """Return a function that closes over copies, as `copy.deepcopy` makes them. Return any other object as it is.

    Objects that are copied already, by the memo of `copy.deepcopy`, are not copied again.

    Raises:
        WorkloadError: it closes over an object that cannot be copied.
    """
    if isinstance(thing, functools.partial):  # itself a copy, but of a function none is made there
        args = [with_copied_closure(value, memo) for value in thing.args]
        bound = {name: with_copied_closure(value, memo) for name, value in thing.keywords.items()}
        return functools.partial(with_copied_closure(thing.func, memo), *args, **bound)
    if not isinstance(thing, types.FunctionType) or not (
        thing.__closure__ or thing.__defaults__ or thing.__kwdefaults__
    ):
        return thing
    if (known := dict.get(memo, id(thing))) is not None:  # unlike an item that a `Memo` would make, which calls this
        return known
    cells = tuple(types.CellType() for _ in thing.__closure__ or ())
    copied = types.FunctionType(thing.__code__, thing.__globals__, thing.__name__, None, cells)
    memo[id(thing)] = copied  # first, for a function may close over itself
    memo[id(copied)] = copied  # which is not to be copied again
    # Code that looks for the wrapped function, as Dynamo does, finds the copy's.
    vars(copied).update({name: with_copied_closure(value, memo) for name, value in vars(thing).items()})
    copied.__qualname__, copied.__module__, copied.__doc__ = thing.__qualname__, thing.__module__, thing.__doc__
    copied.__defaults__ = tuple(copy_with_closures(value, memo) for value in thing.__defaults__ or ()) or None
    copied.__kwdefaults__ = {k: copy_with_closures(v, memo) for k, v in (thing.__kwdefaults__ or {}).items()} or None
    for name, cell, held in zip(thing.__code__.co_freevars, cells, thing.__closure__ or (), strict=True):
        for content in _content(held):
            try:
                cell.cell_contents = copy_with_closures(content, memo)
            except WorkloadError:
                raise
            except Exception as error:  # copying an object may raise anything
                raise WorkloadError(
                    f"{thing.__qualname__} closes over {name!r}, which cannot be copied ({type(error).__name__}: "
                    f"{error}): use a global variable instead"
                ) from error
    return copied


def closes_over_state(function: types.FunctionType, opaque: tuple[type, ...]) -> bool:
    """Whether a function closes over objects that a deep copy copies. Objects found by global names do not count.

    Neither do objects of `opaque` types. PyTorch's own functions, such as compiled ones, hold machinery and are not
    searched.
    """
    if function.__code__.co_filename.startswith(_torchs_own()):
        return False
    pending: list[Any] = [function]
    visited = set[int]()
    while pending:
        found = pending.pop()
        kind = type(found)
        if id(found) in visited or issubclass(kind, (*_ATOMS, *opaque)):
            continue
        visited.add(id(found))
        if kind is types.FunctionType:
            pending += [found.__closure__, found.__defaults__, *(found.__kwdefaults__ or {}).values()]
        elif kind in (tuple, frozenset, types.CellType):
            pending += gc.get_referents(found)
        else:
            return True
    return False


@functools.cache
def _torchs_own() -> str:
    return str(Path(torch.__file__).parent)


def functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """Yield a function, those that it holds on to, and those that it finds by global names."""
    pending, visited = [thing], set()
    while pending:
        found = pending.pop()
        if isinstance(found, functools.partial):
            pending += [found.func, *found.args, *found.keywords.values()]
        elif isinstance(found, types.FunctionType) and id(found) not in visited:
            visited.add(id(found))
            yield found
            pending += [content for cell in found.__closure__ or () for content in _content(cell)]
            pending += [*(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values()]
            pending += globals_of(found).values()


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the objects that a function, and the functions defined in it, look up by global names."""
    known = function.__globals__
    return {name: known[name] for name in _global_names(function.__code__) if name in known}


def _global_names(code: types.CodeType) -> set[str]:
    inner = (_global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    # Not `co_names`, which has the names of attributes, too.
    names = (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return set(names).union(*inner)


def _content(cell: types.CellType) -> list[Any]:
    """Return the content of a cell in a list, which is empty if its name is not bound yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def copy_with_closures(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy, with the closures of the functions passed in it.

    Raises:
        WorkloadError: a function closes over an object that cannot be copied.
    """
    if isinstance(value, types.FunctionType):
        return with_copied_closure(value, memo)
    return with_copied_closure(copy.deepcopy(value, memo), memo)
