"""Notice a candidate that changes its surroundings: timers, PyTorch's functions, its settings, or random numbers.

A snapshot is taken before the candidate's code is loaded. So are the functions that compare it later.
"""

from __future__ import annotations

import builtins
import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from torchwise._torch import dynamo, inductor
from torchwise.verify.settings import read_settings

WATCHED = (
    *("time", "timeit", "builtins", "math", "gc", "copy", "threading", "random", "numpy", "torch", "torch.Tensor"),
    *("torch.nn", "torch.nn.functional", "torch.nn.init", "torch.autograd", "torch.cuda", "torch.testing", "torch.amp"),
    *("torch.linalg", "torch.fft", "torch.special", "torch.utils.benchmark", "torch.optim", "torch.library"),
    *("torch.optim.lr_scheduler", "torch.utils.checkpoint", "torch.utils.data", "numpy.random", "numpy.linalg"),
    *("torch.backends.cuda", "torch.backends.cudnn", "multiprocessing.connection", "pickle", "io", "statistics"),
)
"""Modules and classes whose functions no candidate may replace. Those of Torchwise are watched, too.

PyTorch itself wraps the methods of an optimizer when the first one is made or compiled: `dynamo` has it do so before.
"""
OWN = "torchwise."
_SAME = object()
_METHODS = (FunctionType, staticmethod, classmethod, property)
_CONSTANTS = (bool, int, float, str, tuple, frozenset)


class Surroundings:
    """The functions, methods and settings of a process before a candidate was loaded."""

    def __init__(self) -> None:
        importlib.import_module(inductor.COMPILER_MODULE)  # which wraps functions of PyTorch as it is imported
        dynamo.TAG_MODULES.get()()
        dynamo.wrap_optimizers()
        self._owners = list(_list_owners())
        self._codes = [
            (f"{one.name}.{attribute}", function, _code_of(function))
            for one in self._owners
            for attribute, value in one.values.items()
            if isinstance(function := getattr(value, "__func__", getattr(value, "fget", value)), FunctionType)
        ]
        self._settings = read_settings()

    def list_replaced(self) -> list[str]:
        """List the functions, methods and constants that are no longer the same, or that others hide now."""
        replaced = [found for one in self._owners for found in one.list_replaced()]
        return [*replaced, *(name for name, function, code in self._codes if _code_of(function) != code)]

    def list_changed_settings(self) -> list[str]:
        """List the settings that differ now, each with its former value."""
        return list_differences(self._settings, read_settings())

    def accept_settings(self) -> None:
        """Take the present settings as those to keep: a module may set some while it is imported."""
        self._settings = read_settings()


def list_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the settings that differ, each with its former value."""
    pairs = {name: (old, now[name]) for name, old in before.items() if now[name] != old}
    return [f"{name} from {old} to {new}" for name, (old, new) in ((n, _trim(*pair)) for n, pair in pairs.items())]


def _trim(old: Any, new: Any) -> tuple[Any, Any]:
    """Leave the parts out in which two tables of settings agree."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old, new
    names = [name for name in old | new if (name in old) != (name in new) or old[name] != new[name]]
    before, now = ({name: one[name] for name in names if name in one} for one in (old, new))
    return before, now


@dataclass(frozen=True, slots=True)
class _Owner:
    """A module or a class, and what it held.

    Attributes:
        values: all that may not be replaced, by name.
        names: all names that were there. A new one may hide a function of a base class, or of Python.
    """

    name: str
    owner: Any
    values: dict[str, Any]
    names: frozenset[str]

    def list_replaced(self) -> list[str]:
        now = vars(self.owner)
        lost = [attribute for attribute, value in self.values.items() if now.get(attribute, _SAME) is not value]
        added = (attribute for attribute in now.keys() - self.names if callable(now[attribute]))
        return [f"{self.name}.{attribute}" for attribute in (*lost, *sorted(filter(self._hides, added)))]

    def _hides(self, attribute: str) -> bool:
        if isinstance(self.owner, type):
            return any(attribute in vars(base) for base in self.owner.__mro__[1:])
        return hasattr(builtins, attribute)


def _list_owners() -> Iterator[_Owner]:
    """Yield each watched module, and each class that one holds, once."""
    own = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(OWN)]
    seen: set[int] = set()
    for name, owner in [*((name, _find_owner(name)) for name in WATCHED), *own]:
        parts = list(vars(owner).items()) if isinstance(owner, ModuleType) else []
        classes = [(f"{name}.{part}", value) for part, value in parts if isinstance(value, type)]
        for title, one in [(name, owner), *classes]:
            if isinstance(one, (ModuleType, type)) and id(one) not in seen:
                seen.add(id(one))
                is_own = title.startswith(OWN)
                values = {key: v for key, v in vars(one).items() if _is_watched(one, key, v, is_own=is_own)}
                yield _Owner(title, one, values, frozenset(vars(one)))


def _is_watched(owner: Any, key: str, value: Any, *, is_own: bool) -> bool:
    if isinstance(value, ModuleType):
        return False
    if isinstance(value, _CONSTANTS):
        return is_own and isinstance(owner, ModuleType) and key.isupper()
    return isinstance(value, _METHODS) or callable(value)


def _code_of(function: Any) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__


def _find_owner(name: str) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    head, _, tail = name.rpartition(".")
    return getattr(_find_owner(head), tail, None) if head else None


def read_generators() -> tuple[Any, ...]:
    """Return the state of the generators of random numbers: PyTorch's, Python's and NumPy's."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    numpys: Any = np.random.get_state(legacy=False)
    own = numpys["state"]
    return tuple(bytes(state.numpy()) for state in states), random.getstate(), own["key"].tobytes(), own["pos"]
