"""Methods that a program added to its modules' classes, which a worker imports in their original form.

All of these methods travel along, with a digest of their code. The worker takes those that its own class lacks.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torchwise.compile.guards.code_guard import is_called
from torchwise.errors import WorkloadError, format_error
from torchwise.workload.identity import bytecode


@dataclass(frozen=True, slots=True)
class Method:
    """A function in a class.

    Attributes:
        cls: the class, which a worker imports.
        name: of the attribute.
        digest: of its code, and of the functions that it closes over.
        written: the function, pickled, or None if that failed.
        error: the reason.
    """

    cls: type
    name: str
    digest: str
    written: bytes | None
    error: str = ""


def methods_put_in(things: Iterable[Any]) -> list[Method]:
    """List the methods added to the classes of some objects, and decorated ones, which cannot be distinguished."""
    classes = dict.fromkeys(cls for thing in things for cls in type(thing).__mro__ if _is_imported(cls))
    return [_method(cls, *found) for cls in classes for found in _put_in(cls)]


def put_in(methods: Iterable[Method]) -> None:
    """Add methods to those classes of this process that have others there, or none.

    Raises:
        WorkloadError: one of them could not be pickled.
    """
    import cloudpickle

    for method in methods:
        own = vars(method.cls).get(method.name)
        function = _function(own)
        if function is not None and _digest(function) == method.digest:
            continue
        if method.written is None:
            raise WorkloadError(
                f"{method.cls.__qualname__}.{method.name} is another function in your process than where its class is "
                f"written, and cannot be sent to a worker ({method.error}): put it there in a module that a factory "
                "imports, and give that as package.module:factory or path/file.py:factory"
            )
        setattr(method.cls, method.name, cloudpickle.loads(method.written))


def _is_imported(cls: type) -> bool:
    """Return whether a worker gets a class by its name. Other classes travel by value, with all their contents."""
    found: Any = sys.modules.get(cls.__module__) if cls.__module__ != "__main__" else None
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls and cls.__module__ != "builtins"


def _put_in(cls: type) -> Iterator[tuple[str, Any, types.FunctionType]]:
    of_torch = cls.__module__.partition(".")[0] == "torch"
    for name, value in vars(cls).items():
        function = _function(value)
        if function is None or not is_called(cls, name, value):
            continue
        by_torch = str(function.__globals__.get("__name__")).partition(".")[0] == "torch"
        if not by_torch if of_torch else not function.__code__.co_qualname.startswith(f"{cls.__qualname__}."):
            yield name, value, function


def _function(value: Any) -> types.FunctionType | None:
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return value if isinstance(value, types.FunctionType) else None


def _digest(function: types.FunctionType) -> str:
    found, waiting = dict[types.FunctionType, Any](), [function]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = bytecode(one.__code__)
            cells = [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
            waiting += [value for value in cells if isinstance(value, types.FunctionType)]
    return hashlib.sha256(json.dumps([*found.values()]).encode()).hexdigest()


def _method(cls: type, name: str, value: Any, function: types.FunctionType) -> Method:
    import cloudpickle

    digest = _digest(function)
    try:
        return Method(cls, name, digest, cloudpickle.dumps(value))
    except Exception as error:  # a value in the code may refuse in any way, which matters if the worker has other code
        return Method(cls, name, digest, None, format_error(error))
