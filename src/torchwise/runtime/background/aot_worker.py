"""The workers' side: compile a plan for loading in another process, then load, verify and time it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from torchwise._torch import cpu_isa_cache
from torchwise.compile import compile_plan
from torchwise.compile.aot import Loader, Maker
from torchwise.plan import Trait
from torchwise.runtime.background.protocol import ExtraCalls, read_code, write_code
from torchwise.trial import DerivedJob, Job
from torchwise.trial.experiment import attempt
from torchwise.trial.harness import Harness
from torchwise.trial.job import Attempt
from torchwise.trial.loading import load
from torchwise.workload import Workload
from torchwise.workload.input_spec import find_varying_dims
from torchwise.workload.module_state import State


@dataclass(frozen=True, slots=True)
class Preparation(DerivedJob):
    """The job of a worker: to "make" the code of a plan in a file, or to "check" it in a fresh process."""

    FUNCTION = "torchwise.runtime.background.aot_worker:{0.step}"
    step: Literal["make", "check"]
    job: Job
    file: str
    sha256: str = ""
    checks: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AotCode:
    """The result of compilation: the SHA-256 of the file, and results of the checks of instruction sets."""

    sha256: str
    checks: dict[str, bool]


def make(preparation: Preparation, stage: Callable[[str], None]) -> AotCode:
    """Compile the job's plan ahead of time, for every example of the workload.

    Raises:
        UnsupportedError: the plan or the model cannot be compiled ahead of time.
    """
    job, harness = preparation.job, Harness(preparation.job)
    workload = harness.workload
    maker = Maker(find_varying_dims(workload.inputs))
    _name_in_main(workload.call)
    stage("compile ahead")
    with cpu_isa_cache.recording() as checks, torch.no_grad():
        plan = compile_plan(
            workload.call, job.plan, workload.examples[0], device=harness.device, mode=harness.mode, backend=maker
        )
        for example in workload.examples:
            copy = example.clone()
            plan.call(*copy.args, **copy.kwargs)
    return AotCode(write_code(Path(preparation.file), maker.made), checks)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Verdict and measurement of the loaded code, and how the model may be called besides the program's own calls."""

    attempt: Attempt
    extra_calls: ExtraCalls


def check(preparation: Preparation, stage: Callable[[str], None]) -> CheckResult:
    """Load the code in this fresh process, verify it against float64, and time it against eager."""
    codes = read_code(Path(preparation.file), preparation.sha256) if preparation.file else []
    workload = load(preparation.job)
    _name_in_main(workload.call)
    extra: ExtraCalls = "undrawn" if Trait.STOCHASTIC in preparation.job.traits else "any"
    extra = extra if _keeps_no_state(workload) else "none"
    del workload  # the timed model is loaded again, and needs the memory
    if codes:
        with contextlib.suppress(Exception):  # optional, it only saves seconds
            cpu_isa_cache.replay(preparation.checks)
    found = attempt(preparation.job, stage, Loader(codes) if codes else None)
    return CheckResult(found, extra)


def _name_in_main(call: Callable[..., Any]) -> None:
    """Put the classes of the user's script into `__main__`: workers receive them by value, but look them up there."""
    main = sys.modules["__main__"]
    kinds = {type(child) for child in call.modules()} if isinstance(call, torch.nn.Module) else {call}
    for kind in kinds:
        name = getattr(kind, "__qualname__", "")
        if getattr(kind, "__module__", "") == "__main__" and name.isidentifier():
            setattr(main, name, kind)


def _keeps_no_state(workload: Workload) -> bool:
    copy, state = workload.examples[0].clone(), State.from_call(workload.call)
    with torch.no_grad():
        workload.call(*copy.args, **copy.kwargs)
    return not state.has_changed()
