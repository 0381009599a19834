"""Torchwise finds the fastest verified way to run a PyTorch model on the machine at hand.

Names are loaded on first use (PEP 562), so that `import torchwise` costs neither torch nor a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchwise.former_packages import FORMER, install, load_attributes

if TYPE_CHECKING:
    from torchwise.alerts import Alert, on_alert
    from torchwise.diagnose.analyze import Analysis, analyze
    from torchwise.diagnose.batches import fit_batch
    from torchwise.diagnose.bisect import bisect
    from torchwise.diagnose.explain import explain
    from torchwise.diagnose.pair import verify
    from torchwise.diagnose.trace import watch
    from torchwise.errors import (
        BaselineError,
        BudgetError,
        GraphBreakError,
        InputError,
        InternalError,
        NoEffectError,
        PlanError,
        QueueFullError,
        RefusedPlanError,
        StalePlanError,
        StorageError,
        TargetError,
        TorchwiseError,
        UnsupportedError,
        WorkloadError,
    )
    from torchwise.plan import EAGER, Numerics, Plan
    from torchwise.records import Decision
    from torchwise.runtime.api import Study, apply, tune
    from torchwise.runtime.batched import batched
    from torchwise.runtime.batching import serve_batched
    from torchwise.runtime.components import CompileConfig, CompileManager, compiled, default_manager
    from torchwise.runtime.optimize import optimize
    from torchwise.runtime.program import tune_program
    from torchwise.runtime.serving import export_metrics, freeze, unfreeze, unwrap
    from torchwise.runtime.steps import captured_loop, captured_step, rollout
    from torchwise.workload import Example, Workload
    from torchwise.workload.train_step import TrainStep

__version__ = "0.1.0"

_HOMES = {
    "EAGER": "plan",
    "Alert": "alerts",
    "Analysis": "diagnose.analyze",
    "BaselineError": "errors",
    "BudgetError": "errors",
    "GraphBreakError": "errors",
    "CompileConfig": "runtime.components",
    "CompileManager": "runtime.components",
    "Decision": "records",
    "Example": "workload",
    "InputError": "errors",
    "InternalError": "errors",
    "NoEffectError": "errors",
    "Numerics": "plan",
    "Plan": "plan",
    "PlanError": "errors",
    "QueueFullError": "errors",
    "RefusedPlanError": "errors",
    "StalePlanError": "errors",
    "StorageError": "errors",
    "Study": "runtime.api",
    "TargetError": "errors",
    "TorchwiseError": "errors",
    "TrainStep": "workload.train_step",
    "UnsupportedError": "errors",
    "Workload": "workload",
    "WorkloadError": "errors",
    "analyze": "diagnose.analyze",
    "apply": "runtime.api",
    "batched": "runtime.batched",
    "bisect": "diagnose.bisect",
    "captured_loop": "runtime.steps",
    "captured_step": "runtime.steps",
    "compiled": "runtime.components",
    "default_manager": "runtime.components",
    "explain": "diagnose.explain",
    "fit_batch": "diagnose.batches",
    "export_metrics": "runtime.serving",
    "freeze": "runtime.serving",
    "on_alert": "alerts",
    "optimize": "runtime.optimize",
    "rollout": "runtime.steps",
    "serve_batched": "runtime.batching",
    "tune": "runtime.api",
    "tune_program": "runtime.program",
    "unfreeze": "runtime.serving",
    "unwrap": "runtime.serving",
    "watch": "diagnose.trace",
}

__all__ = [
    "EAGER",
    "Alert",
    "Analysis",
    "BaselineError",
    "BudgetError",
    "CompileConfig",
    "CompileManager",
    "Decision",
    "Example",
    "GraphBreakError",
    "InputError",
    "InternalError",
    "NoEffectError",
    "Numerics",
    "Plan",
    "PlanError",
    "QueueFullError",
    "RefusedPlanError",
    "StalePlanError",
    "StorageError",
    "Study",
    "TargetError",
    "TorchwiseError",
    "TrainStep",
    "UnsupportedError",
    "Workload",
    "WorkloadError",
    "__version__",
    "analyze",
    "apply",
    "batched",
    "bisect",
    "captured_loop",
    "captured_step",
    "compiled",
    "default_manager",
    "explain",
    "export_metrics",
    "fit_batch",
    "freeze",
    "on_alert",
    "optimize",
    "rollout",
    "serve_batched",
    "tune",
    "tune_program",
    "unfreeze",
    "unwrap",
    "verify",
    "watch",
]

_FORMER_PACKAGES = [name.removeprefix("torchwise.") for name in FORMER if name.count(".") == 1]
_PACKAGES = ("artifact", "bucketing", "components", "errors", "lock", "training", "verify", "zoo", *_FORMER_PACKAGES)
"""Packages with names of their own, such as `torchwise.training.tune`, and those by their former names.

`torchwise.verify` is a package that is called like a function.
"""
_load = load_attributes(__name__, _HOMES, {"Legality": "Numerics"})
install()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"torchwise.{name}")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
