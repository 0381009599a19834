"""Find the Python functions that a call may run, by the names in their code.

The search begins at the calls and at the `forward` and `__call__` of their classes. From each function it continues to
the methods and global functions whose names its code contains, to its closure, and to its defaults. Functions of
PyTorch and Python are left out, and lookups by names computed at run time are not found.

Code is compared by its content: `importlib.reload`, `cloudpickle` and a notebook cell that runs again replace functions
by equal ones.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchwise.compile.signature import is_equal, is_plain
from torchwise.workload.closure import globals_of
from torchwise.workload.identity import bytecode

MAX_FUNCTIONS = 64
"""Maximum number of functions, the nearest to the call first. Each takes some 30 ns on every call."""
ENTRIES = {"__call__", "forward", "_call_impl", "_slow_forward", "__getattr__", "__getattribute__"}
"""Methods that a call runs even if no code names them."""
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, type(functools.cache(len)))
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchwise", "torchwise_models", "numpy"}


@dataclass
class Namespace:
    """A module's global variables, with the names of functions and classes that a call's code looks up there."""

    owner: str
    variables: dict[str, Any]
    names: set[str] = field(default_factory=set)


class ReachableCode:
    """The functions that calls may run.

    Args:
        calls: functions and other callables that are called.
        classes: the classes of the objects whose methods are called.
        most: the maximum number of functions.

    Attributes:
        functions: the functions, each once.
        namespaces: the namespaces in which they find others by global names.
        names: all names in their code.
    """

    def __init__(self, calls: Iterable[Any], classes: Iterable[type], *, most: int = MAX_FUNCTIONS) -> None:
        self._found: dict[int, types.FunctionType] = {}
        self._spaces: dict[int, Namespace] = {}
        self._members: defaultdict[str, list[Any]] = defaultdict(list)
        self.names = set(ENTRIES)
        self._classes: set[type] = set()
        self._visited: set[int] = set()
        self._pending = deque(calls)
        for cls in classes:
            self._add_class(cls)
        while self._pending and len(self._found) < most:
            self._visit(self._pending.popleft())
        self.functions = [*self._found.values()]
        self.namespaces = [*self._spaces.values()]

    def _add_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if base in self._classes or _is_library(base.__module__):
                continue
            self._classes.add(base)
            for name, value in vars(base).items():
                if name in self.names:
                    self._pending.append(value)
                else:
                    self._members[name].append(value)

    def _visit(self, thing: Any) -> None:
        if id(thing) in self._visited:
            return
        self._visited.add(id(thing))
        if isinstance(thing, types.FunctionType):
            self._pending += find_enclosed(thing)
            if not _is_library(thing.__globals__.get("__name__")):
                self._visit_function(thing)
        elif isinstance(thing, type):
            self._add_class(thing)
        elif isinstance(thing, types.MethodType):
            self._pending += [thing.__func__]
            self._add_class(type(thing.__self__))
        elif isinstance(thing, (functools.partial, functools.partialmethod)):
            self._pending += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, _WRAPPERS):
            names = ("__wrapped__", "fget", "func")
            self._pending += [getattr(thing, name) for name in names if hasattr(thing, name)]
        elif callable(thing):
            self._add_class(type(thing))

    def _visit_function(self, function: types.FunctionType) -> None:
        self._found[id(function)] = function
        names = set(find_names(function.__code__))
        for name in names - self.names:
            self._pending += self._members.pop(name, [])
        self.names |= names
        self._pending += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        variables = function.__globals__
        for module in self._look_up(str(variables.get("__name__")), variables, names):
            self._look_up(module.__name__, vars(module), names)

    def _look_up(self, owner: str, variables: dict[str, Any], names: set[str]) -> list[types.ModuleType]:
        """Note the code that is looked up in a module, and return the modules among it."""
        found = {name: variables[name] for name in names if name in variables}
        modules = [m for m in found.values() if isinstance(m, types.ModuleType) and not _is_library(m.__name__)]
        code = {name: value for name, value in found.items() if is_code(value)}
        if code:
            self._spaces.setdefault(id(variables), Namespace(owner, variables)).names.update(code)
            self._pending += code.values()
        return modules


def is_code(value: Any) -> bool:
    """Return whether it is a function or class of a program, and not of PyTorch or Python."""
    if isinstance(value, types.MethodType):
        return is_code(value.__func__)
    if isinstance(value, functools.partial):
        return is_code(value.func)
    return isinstance(value, (types.FunctionType, type)) and not _is_library(value.__module__)


def find_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code mentions, those in texts included, as `getattr` takes them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from find_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def find_enclosed(function: types.FunctionType) -> list[Any]:
    """Return the contents of a function's closure, or the original of a function that `torch.compile` made."""
    if (original := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
        return [original]
    return [content for cell in function.__closure__ or () for content in _contents(cell)]


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not bound yet
        return []


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
