"""The workers' side: compile a plan so that another process can load it; load it, prove it, and time it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from torchwise.background.messages import ExtraCalls, read_code, write_code
from torchwise.realize import isa, realize
from torchwise.realize.ahead import Loader, Maker
from torchwise.trial import AroundJob, Job
from torchwise.trial.arena import Arena
from torchwise.trial.candidate import attempt
from torchwise.trial.job import Attempt
from torchwise.trial.loading import load
from torchwise.workload import Workload
from torchwise.workload.state import State


@dataclass(frozen=True, slots=True)
class Preparation(AroundJob):
    """What a worker is told.

    Attributes:
        step: "make" the code, or "check" it in a fresh process.
        job: workload and plan.
        file: of the code.
        sha256: of the file, to check it.
        checks: what is known of the instruction sets.
    """

    step: Literal["make", "check"]
    job: Job
    file: str
    sha256: str = ""
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.background.prepare:{self.step}"


@dataclass(frozen=True, slots=True)
class Made:
    """What making came to.

    Attributes:
        sha256: of the file.
        checks: what the checks of instruction sets came to.
    """

    sha256: str
    checks: dict[str, bool]


def make(preparation: Preparation, stage: Callable[[str], None]) -> Made:
    """Compile the job's plan ahead, for every example of the workload.

    Raises:
        UnsupportedError: the plan or the model cannot be compiled ahead.
    """
    job, maker = preparation.job, Maker()
    arena = Arena(job)
    workload = arena.workload
    _name_in_main(workload.call)
    stage("compile ahead")
    with isa.recording() as checks, torch.no_grad():
        plan = realize(
            workload.call, job.plan, workload.examples[0], device=arena.device, mode=arena.mode, backend=maker
        )
        for example in workload.examples:
            given = example.clone()
            plan.call(*given.args, **given.kwargs)
    return Made(write_code(Path(preparation.file), maker.made), checks)


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking came to.

    Attributes:
        attempt: verdict and measurement of the code as loaded.
        extra_calls: how the model may be called besides the program's own calls.
    """

    attempt: Attempt
    extra_calls: ExtraCalls


def check(preparation: Preparation, stage: Callable[[str], None]) -> Checked:
    """Load what was made in this fresh process, hold it against float64, and time it beside eager."""
    codes = read_code(Path(preparation.file), preparation.sha256) if preparation.file else []
    workload = load(preparation.job)
    _name_in_main(workload.call)
    extra: ExtraCalls = "undrawn" if "stochastic" in preparation.job.traits else "any"
    extra = extra if _keeps_no_state(workload) else "none"
    del workload  # what is timed is loaded anew, and has the memory to itself
    if codes:
        with contextlib.suppress(Exception):  # it saves seconds, and is not needed
            isa.replay(preparation.checks)
    found = attempt(preparation.job, stage, Loader(codes) if codes else None)
    return Checked(found, extra)


def _name_in_main(call: Callable[..., Any]) -> None:
    """Put the classes of the user's script where code names them; in a worker, they came by value."""
    main = sys.modules["__main__"]
    kinds = {type(child) for child in call.modules()} if isinstance(call, torch.nn.Module) else {call}
    for kind in kinds:
        name = getattr(kind, "__qualname__", "")
        if getattr(kind, "__module__", "") == "__main__" and name.isidentifier():
            setattr(main, name, kind)


def _keeps_no_state(workload: Workload) -> bool:
    given, state = workload.examples[0].clone(), State.of(workload.call)
    with torch.no_grad():
        workload.call(*given.args, **given.kwargs)
    return not state.changed()
