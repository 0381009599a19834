"""Compare code by its content, as reloading a module creates new objects with the same code.

`importlib.reload`, `cloudpickle` and a notebook cell that runs again replace functions by equal ones.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

from torchwise.compile.signature import is_equal, is_plain
from torchwise.workload.closure import globals_of
from torchwise.workload.identity import bytecode

Pairs = set[tuple[int, int]]


def is_same_code(now: Any, before: Any, compared: Pairs | None = None) -> bool:
    """Return whether two objects run the same code: functions, methods, descriptors, classes, or containers of them.

    Args:
        now: one of them.
        before: the other.
        compared: pairs that are being compared, as a function may close over itself.
    """
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    compared = set() if compared is None else compared
    if (pair := (id(now), id(before))) in compared:
        return True
    compared.add(pair)
    if isinstance(now, types.CodeType):
        return _form(now) == _form(before)
    if isinstance(now, types.FunctionType):
        return _is_same_function(now, before, compared)
    if isinstance(now, type):
        return _is_same_class(now, before, compared)
    if (parts := _parts_to_compare(now)) is not None:
        return _are_same(parts, _parts_to_compare(before), compared)
    return is_plain(now) and is_equal(now, before)


def _parts_to_compare(thing: Any) -> tuple[Any, ...] | None:
    """Return the parts that decide on a descriptor or a container, or None for other objects, each its own."""
    if isinstance(thing, (staticmethod, classmethod)):
        return (thing.__func__,)
    if isinstance(thing, types.MethodType):
        return (thing.__func__, thing.__self__)
    if isinstance(thing, property):
        return (thing.fget, thing.fset, thing.fdel)
    if isinstance(thing, functools.cached_property):
        return (thing.func,)
    if type(thing) is functools.partial:
        return (thing.func, thing.args, thing.keywords)
    if type(thing) is dict:
        return (*thing.keys(), *thing.values())
    if isinstance(thing, (tuple, list)):
        return tuple(thing)
    return None


def _are_same(now: Any, before: Any, compared: Pairs) -> bool:
    return len(now) == len(before) and all(is_same_code(a, b, compared) for a, b in zip(now, before, strict=True))


def _form(code: types.CodeType) -> list[Any]:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~inspect.CO_NESTED)
    return [counts, bytecode(code)]


def _is_same_function(now: types.FunctionType, before: types.FunctionType, compared: Pairs) -> bool:
    cells = [function.__closure__ or () for function in (now, before)]
    if not (
        is_same_code(now.__code__, before.__code__, compared)
        and is_same_code(now.__defaults__, before.__defaults__, compared)
        and is_same_code(now.__kwdefaults__, before.__kwdefaults__, compared)
        and _are_same([*map(_content, cells[0])], [*map(_content, cells[1])], compared)
    ):
        return False
    # A function that was sent by value has global variables of its own.
    return now.__globals__ is before.__globals__ or is_same_code(globals_of(now), globals_of(before), compared)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return types.CellType


def _is_same_class(now: type, before: type, compared: Pairs) -> bool:
    named = [(cls.__qualname__, cls.__module__) for cls in (now, before)]
    attributes = [{name: value for name, value in vars(cls).items() if _counts(name, value)} for cls in (now, before)]
    return (
        named[0] == named[1]
        and _are_same(now.__bases__, before.__bases__, compared)
        and attributes[0].keys() == attributes[1].keys()
        and all(is_same_code(value, attributes[1][name], compared) for name, value in attributes[0].items())
    )


def _counts(name: str, value: Any) -> bool:
    """Return whether a class's attribute bears on the behaviour of its code: not its documentation and the like."""
    is_dunder = name.startswith("__") and name.endswith("__")
    return name != "_abc_impl" and not (is_dunder and not callable(value)) and not _is_slot(value)


def _is_slot(value: Any) -> bool:
    """Return whether Python itself made it for a class: `__dict__`, `__weakref__`, the members of `__slots__`."""
    return isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))
