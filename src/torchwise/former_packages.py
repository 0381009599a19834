"""Former names of packages, such as `torchwise.shapes`: each is imported as the package that it is now.

This is part of `import torchwise`, and so it imports next to nothing.
"""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

PACKAGES = {
    "artefact": "artifact",
    "foreign": "model_libraries",
    "parts": "components",
    "realize": "compile",
    "shapes": "bucketing",
}
"""Packages of `torchwise` by their former names."""

MODULES = {
    "parts.part": "components.component",
    "shapes.proof": "bucketing.padding_check",
    "workload.differences": "records.structure_differences",
    "workload.spec": "plan.workload_spec",
    "workload.step": "workload.train_step",
}
"""Modules by their former names, as pickles of users' own objects name them."""

_said: set[str] = set()


def warn_once(former: str, now: str) -> None:
    """Warn, once in a process, that something has another name now."""
    if former not in _said:
        _said.add(former)
        warnings.warn(f"{former} is called {now} now", FutureWarning, stacklevel=3)


class _Finder:
    """Finds and loads a former package, or a module in it, for Python's import system."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        package, _, inner = rest.partition(".")
        if root != "torchwise" or (package not in PACKAGES and rest not in MODULES):
            return None
        from importlib.util import find_spec

        now = "torchwise." + (MODULES.get(rest) or f"{PACKAGES[package]}.{inner}".rstrip("."))
        if find_spec(now) is None:
            return None
        if package in PACKAGES:
            warn_once(f"torchwise.{package}", f"torchwise.{PACKAGES[package]}")
        else:
            warn_once(fullname, now)
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=now)  # type: ignore[arg-type]

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
        # It comes first, as an earlier version may have left folders of these names, with caches in them.
        sys.meta_path.insert(0, _Finder())
