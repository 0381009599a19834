"""`explain`: have a worker run a model, and say where its time goes and how to save some. It loads no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torchwise.command_start import budget_start
from torchwise.diagnose.requests import make_spec
from torchwise.errors import InputError, UnsupportedError, is_positive
from torchwise.former_names import renamed_arguments
from torchwise.keywords import checked_keywords
from torchwise.plan import Plan, check_is_plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import Decision, Failure, FailureKind
from torchwise.records.explanation import Explanation
from torchwise.report.progress import Progress
from torchwise.trial import (
    Budget,
    DerivedJob,
    Job,
    Launcher,
    Limits,
    ProcessLauncher,
    Stopwatch,
    ask_worker,
    own_caches,
    send_model,
)
from torchwise.trial.error_origin import make_budget_error
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload

if TYPE_CHECKING:
    from torchwise.trial.launcher import OnStage

FIXES_S = 45.0
"""Seconds after which no further fix is tried, if there is no budget."""
EFFORT = replace(EFFORTS["quick"], half_width=0.01, measure_s=4.0)
"""A potential saving is a small difference of two times: both need a narrow interval, or the saving is noise."""
LIMIT_S = 900.0
"""Seconds after which the worker is ended if there is no budget."""


@dataclass(frozen=True, slots=True)
class Inquiry(DerivedJob):
    """A job for a worker: explain a plan, or `torch.compile` if it is None.

    Attributes:
        fixes_s: seconds after which no further fix is tried.
        end: the time by `time.monotonic` at which the budget ends the worker, or infinity.
        folder: for artifacts, or "".
    """

    FUNCTION = "torchwise.diagnose.explain_worker:explain_target"
    job: Job
    plan: Plan | None
    fixes_s: float
    end: float = math.inf
    folder: str = ""


@renamed_arguments(artifacts="artefacts")
@checked_keywords()
def explain(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    plan: Plan | Decision | None = None,
    calls: float = DEFAULT_CALLS,
    mode: str = "inference",
    device: str | None = None,
    budget: float | None = None,
    fixes: bool = True,
    artifacts: str | Path | None = None,
    launcher: Launcher | None = None,
    on_stage: OnStage | None = None,
    progress: bool = True,
) -> Explanation:
    """Say where the compiled `model` spends its time, why, and how much each fix would save.

    It runs in a process of its own with empty caches. Nothing is compiled in this one, and the model is not changed.

    Args:
        model: an `nn.Module`, a function, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple (or one tensor).
        kwargs: example keyword arguments.
        examples: several example inputs with weights, in place of `args`. Recompilations between them are found.
        plan: explain this plan, or that of a decision, instead of `torch.compile` with its defaults.
        calls: expected calls in each process. Seconds that are saved once are divided by them.
        mode: "inference" or "training" (with a backward pass).
        device: "cpu" or "cuda", by default the device of the model and its inputs, and for a target "cuda" if
            available.
        budget: seconds for everything, waiting until the device is free included. Then the explanation has the fixes
            that were measured so far. None measures fixes for 45 seconds, however long the rest takes.
        fixes: whether to measure the potential savings of fixes. Otherwise they are estimated.
        artifacts: folder for graphs before and after optimisation, generated code and guards.
        launcher: where the worker runs.
        on_stage: called with the name of each stage.
        progress: whether to show the stage and the time spent, unless `on_stage` is given.

    Raises:
        InputError: an argument cannot be used, or the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
        UnsupportedError: it cannot be compiled, or its worker ended. The message says how.
        BudgetError: the budget is spent before the run is measured.
    """
    begun = budget_start()
    if budget is not None and not is_positive(budget):
        raise InputError(f"budget is {budget!r} s, but must be above 0. --no-fixes, or fixes=False, measures no fix")
    chosen = plan.plan if isinstance(plan, Decision) else plan
    if chosen is not None:
        check_is_plan(chosen)
    workload = read_workload(model, args, kwargs, examples)
    spec = make_spec(model, workload, device, plan, mode=mode, calls=calls)
    folder = _make_folder(artifacts)
    display = _StageProgress() if progress and on_stage is None else nullcontext()
    with display as shown, send_model(workload, spec.target) as file, own_caches() as caches:
        job = Job("inspect", spec, source=file.source, settings=file.settings, effort=EFFORT, cache_dir=caches)
        spent = Stopwatch(on_stage or (shown.stage if shown else lambda _name: None), begun)
        whole = Budget(budget or math.inf, spent)
        fixes_s = FIXES_S if budget is None else budget
        inquiry = Inquiry(job, chosen, fixes_s if fixes else 0.0, begun + whole.seconds, folder)
        limits = Limits.from_free_memory(LIMIT_S + (budget or 0.0))  # a budget ends it first
        answer = ask_worker(whole.limit(launcher or ProcessLauncher()), inquiry, Explanation, limits, spent.stage)
    if isinstance(answer, Failure) and answer.kind is FailureKind.OUT_OF_BUDGET:
        raise make_budget_error(answer, f"{spec.target} is not explained")
    if isinstance(answer, Failure):
        raise UnsupportedError(
            f"{spec.target} cannot be explained, because its worker ended in stage {answer.stage!r}: {answer}. To find "
            "the cause of a crash, run torchwise bisect"
        )
    return answer


class _StageProgress(Progress):
    """Shows each stage as a step of its own."""

    def __enter__(self) -> Self:
        self._leader = "explaining"
        return super().__enter__()

    def stage(self, name: str) -> None:
        """Show a stage."""
        if name and name != self._here.name:
            self._begin(name)


def _make_folder(artifacts: str | Path | None) -> str:
    """Create the folder in this process, so that an unusable one is refused before anything runs."""
    if artifacts is None:
        return ""
    folder = Path(artifacts).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"artifacts is {artifacts}, but this folder cannot be created: {error.strerror}") from None
    return str(folder)
