"""The code that a callable runs, and whether any of it was replaced: a class patched, a `functools.partial` rebound.

No write to a module or an object shows that, and compilers do not guard it: a method is taken for what it was when it
was traced.
"""

from __future__ import annotations

import functools
import gc
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.glance import DICT_VERSION
from torchwise.realize.private import look_up

try:
    version: Callable[[dict[str, Any]], int] = look_up("watching classes", DICT_VERSION)
except UnsupportedError:  # this torch reads no counts of writes: all is looked at each time
    version = functools.partial(lambda count, _: next(count), itertools.count())
_OF_PYTHON = ("builtins", "functools", "types")
_OF_MODULES = {"__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "_slow_forward", "forward"}
"""What a call of a module goes through in `torch.nn.Module` itself."""
_NOT_CALLED = {"__init__", "__new__", "__init_subclass__", "__repr__"}
_NOT_CALLED |= {"__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"}
"""Methods that make, copy and show objects; what loads Dynamo replaces one of them in `torch.nn.Module`."""
body = attrgetter("__code__")
"""What a function runs, which may be replaced in it, as tools do that load changed source anew."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What code hangs in a dict: of a class, of an object, or of the arguments of a partial."""

    owner: str
    now: dict[str, Any]
    counts: Callable[[str, Any], bool]
    kept: dict[str, Any]

    @classmethod
    def of(cls, owner: str, now: dict[str, Any], counts: Callable[[str, Any], bool]) -> _Names:
        return cls(owner, now, counts, {name: value for name, value in now.items() if counts(name, value)})

    def replaced(self) -> str | None:
        for name in {**self.kept, **self.now}:
            now, kept = self.now.get(name), self.kept.get(name)
            if now is not kept and (name in self.kept or self.counts(name, now)):
                return f"{self.owner}.{name}"
        return None


class CodeGuard:
    """The classes, functions and partials behind callables, as they are now.

    A class counts with its bases, and with all that it holds but plain data. Looked at are the classes of all
    submodules, and of what a function closes over, a method is bound to, and a partial or an object holds: not what
    code looks up in globals.

    Attributes:
        dicts: where code is looked up; what is written there may be code that was replaced.
        functions: what is called, or bound to what is called, each with its `body`.
    """

    def __init__(self, *calls: Callable[..., Any]) -> None:
        self._calls = calls
        self.look()

    def look(self) -> None:
        """Take the code as it is now for what it should be."""
        behind = list(_behind(self._calls))
        self.functions = [each for each in behind if isinstance(each, types.FunctionType)]
        self._names = list(_names(self._calls, behind))
        self.dicts = [names.now for names in self._names]
        self._seen = writes_to(self.dicts)
        self._found: str | None = None

    def replaced(self) -> str | None:
        """Return the name of what was replaced, or None."""
        if (written := writes_to(self.dicts)) != self._seen:
            self._found = next(filter(None, (names.replaced() for names in self._names)), None)
            self._seen = written
        return self._found


def writes_to(dicts: list[dict[str, Any]]) -> int:
    """Return a number that is larger after each write to one of them."""
    return sum(map(version, dicts))


def _behind(calls: Sequence[Callable[..., Any]]) -> Iterator[Any]:
    """Yield what calls lead to: modules, objects, functions, partials, each once."""
    seen, waiting = set[int](), list[Any](calls)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, types.BuiltinFunctionType)) or not callable(one):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, torch.nn.Module):
            waiting += [*one.modules(), *filter(None, [vars(one).get("forward")])]
        elif isinstance(one, types.MethodType):
            waiting += [one.__self__, one.__func__]
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _is_bound(cell)]
        else:
            waiting += getattr(one, "__dict__", {}).values()


def _is_bound(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(calls: Sequence[Any], behind: list[Any]) -> Iterator[_Names]:
    own = [call for call in calls if not isinstance(call, (torch.nn.Module, types.FunctionType))]
    for each in behind:
        if isinstance(each, functools.partial):
            yield _Names.of("functools.partial.keywords", each.keywords, lambda _name, _value: True)
        elif any(each is call for call in own) and hasattr(each, "__dict__"):
            yield _Names.of(type(each).__qualname__, vars(each), functools.partial(is_called, None))
    for cls in dict.fromkeys(cls for each in behind for cls in type(each).__mro__):
        for held in gc.get_referents(cls.__dict__):  # the dict behind what Python shows, whose writes are counted
            if type(held) is dict and cls.__module__ not in _OF_PYTHON:
                yield _Names.of(cls.__qualname__, held, functools.partial(is_called, cls))


def is_called(cls: type | None, name: str, value: Any) -> bool:
    """Whether what hangs in a class, or in an object, may be code that a call runs."""
    if cls is torch.nn.Module:
        return name in _OF_MODULES
    return name not in _NOT_CALLED and (callable(value) or hasattr(value, "__get__"))
