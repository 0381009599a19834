"""Guard the code that a callable runs against replacement, such as a patched class or a rebound `functools.partial`.

No write to a module or an object shows that, and compilers do not guard it: they keep a method's code from the trace.
"""

from __future__ import annotations

import functools
import gc
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from torchwise.compile.guards.dict_contents import MISSING, DictContents, watch
from torchwise.compile.guards.reachable_code import ReachableCode, find_enclosed, is_same_code
from torchwise.compile.guards.varying_values import Guard

_CODE = (types.FunctionType, types.MethodType, functools.partial)
_METHODS = (types.FunctionType, staticmethod, classmethod)
_OF_PYTHON = ("builtins", "functools", "types")
_OF_MODULES = {"__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "_slow_forward", "forward"}
"""The methods of `torch.nn.Module` itself that a call of a module goes through."""
_NOT_CALLED = {"__init__", "__new__", "__init_subclass__", "__repr__"}
_NOT_CALLED |= {"__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"}
"""Methods that create, copy and print objects. Loading Dynamo replaces one of them in `torch.nn.Module`."""
code_of, defaults_of, keywords_of = map(attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))
"""The code and defaults of a function, which tools that reload changed source may replace."""


class CodeGuard(Guard):
    """A snapshot of the classes, functions and partials behind callables.

    For a class it covers the bases, and all attributes other than plain data. For a module it covers attributes that
    replace a method. It covers the classes of all submodules and of the objects that a function closes over. It also
    covers the classes of objects that a method is bound to, or that a partial or an object holds. The functions that
    all these find by name (`ReachableCode`) are covered, too. Equal code from a reload counts as the same.

    Attributes:
        dicts: the dicts in which code is looked up. A write there may replace code.
        functions: the functions that calls may run.
        codes: the code of each function.
        defaulted: the functions that have defaults.
        keyworded: the functions that have defaults of arguments that are given by name alone.
        defaults: the defaults of these functions.
    """

    def __init__(self, *calls: Callable[..., Any]) -> None:
        self._calls = calls
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the present code as the reference."""
        reachable = list(_find_reachable(self._calls))
        reached = ReachableCode(_select_callables(reachable), dict.fromkeys(map(type, reachable)))
        self.functions = reached.functions
        self.defaulted = [each for each in self.functions if each.__defaults__]
        self.codes = [*map(code_of, self.functions)]
        # Those of keyword-only arguments are kept apart from the others.
        self.keyworded = [each for each in self.functions if each.__kwdefaults__]
        self.defaults = self._defaults_now()
        self._contents = [*_list_dicts(self._calls, reachable), *_list_namespaces(reachable, reached)]
        self.dicts = [one.contents for one in self._contents]
        self._find_differences = watch(self._contents)

    def has_changed(self) -> bool:
        """Whether code was replaced."""
        return self.find_replaced() is not None

    def find_replaced(self) -> str | None:
        """Return the name of the replaced code, or None."""
        return self.rebound() or self.rewritten()

    def rebound(self) -> str | None:
        """Return the name of a class attribute, global or other entry with replaced code, or None."""
        found = next(iter(self._find_differences().items()), None)  # another thread may empty it meanwhile
        return None if found is None else f"{self._contents[found[0]].owner}.{found[1][0]}"

    def rewritten(self) -> str | None:
        """Return the name of a function whose own code or defaults changed, or None."""
        codes, defaults = [*map(code_of, self.functions)], self._defaults_now()
        if codes == self.codes and not self.has_other_defaults():
            return None
        for function, now, before in zip(self.functions, codes, self.codes, strict=True):
            if not is_same_code(now, before):
                return f"the code of {function.__qualname__}"
        for function, now, before in zip([*self.defaulted, *self.keyworded], defaults, self.defaults, strict=True):
            if not is_same_code(now, before):
                return f"a default of {function.__qualname__}"
        self.codes[:], self.defaults[:] = codes, defaults  # so that an identity check is enough
        return None

    def has_other_defaults(self) -> bool:
        """Return whether defaults are other objects than before. They may still be equal."""
        return not all(map(is_, self._defaults_now(), self.defaults))

    def _defaults_now(self) -> list[Any]:
        return [*map(defaults_of, self.defaulted), *map(keywords_of, self.keyworded)]


def _find_reachable(calls: Sequence[Callable[..., Any]]) -> Iterator[Any]:
    """Yield the objects that calls lead to: modules, objects, functions, partials, each once."""
    visited, pending = set[int](), list[Any](calls)
    while pending:
        one = pending.pop()
        if id(one) in visited or isinstance(one, (type, types.BuiltinFunctionType)) or not callable(one):
            continue
        visited.add(id(one))
        yield one
        if isinstance(one, torch.nn.Module):
            value_dict = (value for name, value in vars(one).items() if name != "_compiled_call_impl")
            pending += [*one.modules(), *(value for value in value_dict if isinstance(value, _CODE))]
        elif isinstance(one, types.MethodType):
            pending += [one.__self__, one.__func__]
        elif isinstance(one, functools.partial):
            pending += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, types.FunctionType):
            pending += find_enclosed(one)
        else:
            pending += getattr(one, "__dict__", {}).values()


def _select_callables(reachable: list[Any]) -> list[Any]:
    return [each for each in reachable if isinstance(each, _CODE)]


def _list_namespaces(reachable: list[Any], reached: ReachableCode) -> Iterator[DictContents]:
    """Yield the dicts, other than those of classes, in which called code is looked up by name."""
    for space in reached.namespaces:
        yield _make_contents(space.owner, space.variables, space.names)
    for function in reached.functions:
        if defaults := function.__kwdefaults__:
            yield _make_contents(f"a default of {function.__qualname__}", defaults, [*defaults])
    parts = [each for each in reachable if isinstance(each, torch.nn.Module)]
    methods = {cls: _methods_of(cls, reached.names) for cls in {*map(type, parts)}}
    for part in parts:
        cls = type(part)
        yield DictContents(
            vars(part), methods[cls], owner=cls.__qualname__, is_same=functools.partial(is_same_method, part)
        )


def _list_dicts(calls: Sequence[Any], reachable: list[Any]) -> Iterator[DictContents]:
    """Yield the dicts of partials, of objects that are called, and of classes."""
    own = [call for call in calls if not isinstance(call, (torch.nn.Module, types.FunctionType))]
    for each in reachable:
        if isinstance(each, functools.partial):
            yield _make_contents("functools.partial.keywords", each.keywords)
        elif any(each is call for call in own) and hasattr(each, "__dict__"):
            yield _make_contents(type(each).__qualname__, vars(each), counts=functools.partial(is_called, None))
    for cls in dict.fromkeys(cls for each in reachable for cls in type(each).__mro__):
        for value_dict in gc.get_referents(cls.__dict__):  # the dict behind Python's proxy, whose writes are counted
            if type(value_dict) is dict and cls.__module__ not in _OF_PYTHON:
                yield _make_contents(cls.__qualname__, value_dict, counts=functools.partial(is_called, cls))


def _make_contents(
    owner: str,
    contents: dict[str, Any],
    names: Collection[str] | None = None,
    counts: Callable[[str, Any], bool] | None = None,
) -> DictContents:
    return DictContents(
        contents, names, owner=owner, counts=counts, is_same=lambda _, now, before: is_same_code(now, before)
    )


def is_same_method(part: torch.nn.Module, name: str, now: Any, before: Any) -> bool:
    """Whether two values of a module's attribute are the same code, where a missing one leaves it to the class.

    Programs that replace a method for a while put it back as an attribute: `forward = model.forward`, and later
    `model.forward = forward`.
    """
    return is_same_code(_look_up(part, name, now), _look_up(part, name, before))


def _look_up(part: torch.nn.Module, name: str, value: Any) -> Any:
    if value is not MISSING:
        return value
    own = inspect.getattr_static(type(part), name, None)
    return own.__get__(part, type(part)) if isinstance(own, _METHODS) else own


def _methods_of(cls: type, named: set[str]) -> frozenset[str]:
    """Return the methods that code calls on such an object, and that an attribute of the object would replace.

    Python takes special methods only from the class.
    """
    value_dict = (item for base in cls.__mro__ for item in vars(base).items())
    methods = {name for name, value in value_dict if callable(value) or isinstance(value, _METHODS)}
    return frozenset(name for name in methods & named if not name.startswith("__"))


def is_called(cls: type | None, name: str, value: Any) -> bool:
    """Whether a value in a class, or in an object, may be code that a call runs."""
    if cls is torch.nn.Module:
        return name in _OF_MODULES
    return name not in _NOT_CALLED and (callable(value) or hasattr(value, "__get__"))
