"""Former names of packages, fields and functions: each still works, and says once by which name it goes now."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

PACKAGES = {
    "artefact": "artifact",
    "foreign": "model_libraries",
    "parts": "components",
    "realize": "compile",
    "shapes": "bucketing",
}
"""Packages of `torchwise` by the names that they had before 0.2."""

_FIELDS: dict[type, dict[str, str]] = {}
"""The former names of each class's fields, with the names that they have now."""
_said: set[str] = set()


def warn_once(former: str, now: str) -> None:
    """Warn, once in a process, that something has another name now."""
    if former not in _said:
        _said.add(former)
        warnings.warn(f"{former} is called {now} now", FutureWarning, stacklevel=3)


def renamed_fields(**names: str) -> Callable[[C], C]:
    """Decorate a dataclass whose fields had other names. They work as arguments and attributes, and in stored data.

    Args:
        names: the former name of each field, by the name that it has now.
    """
    current = {former: name for name, former in names.items()}

    def decorate(kind: C) -> C:
        _FIELDS[kind] = current
        for former, name in current.items():
            setattr(kind, former, property(_read(f"{kind.__name__}.{former}", name)))
        init = kind.__init__  # type: ignore[misc]

        @wraps(init)
        def accept(self: Any, *args: Any, **kwargs: Any) -> None:
            for former in kwargs.keys() & current.keys():
                warn_once(f"{kind.__name__}.{former}", current[former])
                kwargs[current[former]] = kwargs.pop(former)
            init(self, *args, **kwargs)

        kind.__init__ = accept  # type: ignore[misc]
        return kind

    return decorate


def with_current_names(data: Any) -> Any:
    """Return plain data of a record with the names that its fields have now.

    Data are known as those of a class by its required fields, as data of other classes may hold equal names.
    """
    if isinstance(data, (list, tuple)):
        return data if data and isinstance(data[0], (int, float, str)) else [with_current_names(item) for item in data]
    if not isinstance(data, dict):
        return data
    names = next((known for kind, known in _FIELDS.items() if _is_of(data, kind, known)), {})
    return {names.get(name, name): with_current_names(item) for name, item in data.items()}


def _is_of(data: Mapping[Any, Any], kind: type, former: Mapping[str, str]) -> bool:
    if not former.keys() & data.keys():
        return False
    given = {former.get(name, name) for name in data}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    return required <= given <= {f.name for f in fields(kind)}


def _read(former: str, name: str) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        warn_once(former, name)
        return getattr(self, name)

    return read


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a package of `torchwise`, or a module in it, by its former name."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        package, _, inner = rest.partition(".")
        if root != "torchwise" or package not in PACKAGES:
            return None
        now = f"torchwise.{PACKAGES[package]}" + (f".{inner}" if inner else "")
        if importlib.util.find_spec(now) is None:
            return None
        warn_once(f"torchwise.{package}", f"torchwise.{PACKAGES[package]}")
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=now)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__  # the import system writes its own over it
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let packages be imported by their former names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(
            0, _Finder()
        )  # before folders of that name, in which caches of an earlier version are left
