"""Names of packages: those that load on first use, and former ones, such as `torchwise.shapes`, which still work.

This is part of `import torchwise`, and so it imports next to nothing.
"""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

FORMER = {
    "torchwise.api": "torchwise.runtime.api",
    "torchwise.artefact": "torchwise.artifact",
    "torchwise.background": "torchwise.runtime.background",
    "torchwise.cluster": "torchwise.study.cluster",
    "torchwise.doctor": "torchwise.diagnose.doctor",
    "torchwise.dynamo": "torchwise.runtime.dynamo",
    "torchwise.foreign": "torchwise_models.libraries",
    "torchwise.model_libraries": "torchwise_models.libraries",
    "torchwise.parts": "torchwise.components",
    "torchwise.realize": "torchwise.compile",
    "torchwise.serving": "torchwise.runtime.serving",
    "torchwise.shapes": "torchwise.bucketing",
    "torchwise.steps": "torchwise.runtime.steps",
    "torchwise.zoo.arr_coc": "torchwise_models.zoo.arr_coc",
    "torchwise.zoo.energy_flow": "torchwise_models.zoo.energy_flow",
    "torchwise.zoo.ivhl": "torchwise_models.zoo.ivhl",
    "torchwise.zoo.spinlock": "torchwise_models.zoo.spinlock",
    "torchwise.zoo.training": "torchwise_models.zoo.training",
    # Modules, as pickles of users' own objects name them.
    "torchwise.bucketing.bucket_dispatch": "torchwise.runtime.bucketing.dispatch",
    "torchwise.bucketing.choice": "torchwise.runtime.bucketing.buckets",
    "torchwise.bucketing.counts": "torchwise.runtime.bucketing.dispatch",
    "torchwise.bucketing.padder": "torchwise.runtime.bucketing.padding",
    "torchwise.bucketing.warmup": "torchwise.runtime.bucketing.bucketed",
    "torchwise.artifact.manifest": "torchwise.artifact.package",
    "torchwise.diagnose.doctor.finding": "torchwise.diagnose.doctor.system_info",
    "torchwise.diagnose.watch": "torchwise.diagnose.trace",
    "torchwise.plan.tune_options": "torchwise.plan.workload_spec",
    "torchwise.records.approval": "torchwise.records.decision",
    "torchwise.records.batchfit": "torchwise.records.scale",
    "torchwise.records.cores": "torchwise.records.measurement",
    "torchwise.records.cost_model": "torchwise.records.trial",
    "torchwise.records.inspection": "torchwise.records.measurement",
    "torchwise.runtime.latency": "torchwise.runtime.statistics",
    "torchwise.store.explanations": "torchwise.store.reports",
    "torchwise.training.ranks": "torchwise.runtime.training.distributed",
    "torchwise.foreign.denoisers": "torchwise_models.libraries.wrappers",
    "torchwise.foreign.language": "torchwise_models.libraries.wrappers",
    "torchwise.model_libraries.denoisers": "torchwise_models.libraries.wrappers",
    "torchwise.model_libraries.language": "torchwise_models.libraries.wrappers",
    "torchwise.parts.part": "torchwise.runtime.components.component",
    "torchwise.shapes.proof": "torchwise.runtime.bucketing.padding_check",
    "torchwise.workload.differences": "torchwise.records.structure_differences",
    "torchwise.workload.spec": "torchwise.plan.workload_spec",
    "torchwise.workload.step": "torchwise.workload.train_step",
    "torchwise.zoo.entry": "torchwise.zoo.catalogue",
    "torchwise.zoo.tutorial.branch": "torchwise.zoo.tutorial.basics",
    "torchwise.zoo.tutorial.fusion": "torchwise.zoo.tutorial.basics",
    "torchwise.zoo.tutorial.launches": "torchwise.zoo.tutorial.basics",
}
"""Packages and modules by their former names."""

SHORT = {
    "torchwise.bucketing": "torchwise.runtime.bucketing",
    "torchwise.components": "torchwise.runtime.components",
    "torchwise.lock": "torchwise.study.lock",
    "torchwise.training": "torchwise.runtime.training",
}
"""Packages that programs import by a shorter name than their place has. Files `*.pyi` say so to type checkers."""

_said: set[str] = set()


def warn_once(former: str, now: str) -> None:
    """Warn, once in a process, that something has another name now."""
    if former not in _said:
        _said.add(former)
        warnings.warn(f"{former} is called {now} now", FutureWarning, stacklevel=3)


class _Finder:
    """Finds and loads a package by another name, or a module in it, for Python's import system."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("torchwise."):
            return None
        names = FORMER | SHORT
        former = [name for name in accumulate(fullname.split("."), "{}.{}".format) if name in names]
        if not former:
            return None
        from importlib.util import find_spec

        now = names[former[-1]] + fullname.removeprefix(former[-1])
        try:
            found = find_spec(now)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("torchwise_models"):
                raise
            from torchwise.installation import suggest_models_package

            text = f"{fullname} is called {now} now, and comes with {suggest_models_package()}"
            raise ModuleNotFoundError(text, name=fullname) from None
        if found is None:
            return None
        if former[0] in FORMER:
            warn_once(former[0], FORMER[former[0]])
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=now)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__  # the import system writes its own over it
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let packages be imported by their former and by their shorter names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # It comes first, as an earlier version may have left folders of these names, with caches in them.
        sys.meta_path.insert(0, _Finder())


def load_attributes(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: from the module within it for each name, and by former names."""

    def load(name: str) -> Any:
        if former and name in former:
            warn_once(f"{package}.{name}", f"{package}.{former[name]}")
            return getattr(sys.modules[package], former[name])
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that this is asked once
        return value

    return load
