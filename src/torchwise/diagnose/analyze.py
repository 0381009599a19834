"""`analyze`: examine one plan in full, phase by phase. A worker runs each, and a failure is a result too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torchwise import environment
from torchwise.diagnose.analyze_advice import advise
from torchwise.diagnose.batches import BatchDim, Scaling, check_sizes
from torchwise.diagnose.requests import DEFAULT, ask_worker, make_spec, plan_of, sent
from torchwise.errors import InputError, is_positive
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS, check_effort
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec
from torchwise.records import Decision, Failure, Inspection, Trial, TrialState, codec
from torchwise.records.analysis import Advice, Batch, Steady
from torchwise.records.analysis import Analysis as AnalysisRecord
from torchwise.records.listener import Listener
from torchwise.trial import (
    Assignment,
    DerivedJob,
    Job,
    Launcher,
    Limits,
    ProcessLauncher,
    ProcessSettings,
    inspect_workload,
    own_caches,
    try_plan,
)
from torchwise.trial.job import Attempt
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload

T = TypeVar("T")
LIMIT_S = 600.0
"""Seconds after which a phase is ended. The longest compile among the reference workloads took 238 s."""


class Analysis:
    """The findings about one plan, shown as text on a terminal and as a page in a notebook.

    Attributes:
        record: all findings, as `save_json` writes them.
    """

    def __init__(self, record: AnalysisRecord) -> None:
        self.record = record

    @property
    def advice(self) -> tuple[Advice, ...]:
        """The advice, the most important first."""
        return self.record.advice

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.analysis/1`."""
        fields: dict[str, Any] = codec.to_builtins(self.record)
        return fields

    def save_json(self, path: str | Path) -> None:
        """Write schema `torchwise.analysis/1`."""
        from torchwise.records.files import write_json

        write_json(self.record, path)

    def save_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        from torchwise.records.files import write_atomically

        write_atomically(self._repr_html_(), path)

    def __rich__(self) -> Any:
        from torchwise.report.analysis import render_analysis

        return render_analysis(self.record)

    def _repr_html_(self) -> str:
        from torchwise.report.analysis import render_analysis_html

        return render_analysis_html(self.record)

    def __repr__(self) -> str:
        return f"<Analysis of {self.record.plan} for {self.record.workload.target}: {self.advice[0].text}>"


def analyze(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    plan: Plan | Decision | str | None = None,
    calls: int = DEFAULT_CALLS,
    restarts: int = 1,
    effort: str = "standard",
    mode: str = "inference",
    objective: str = "latency",
    device: str | None = None,
    batches: Sequence[int] = (),
    batch_dim: int | None = None,
    limit: float = LIMIT_S,
    store: str | None = None,
    progress: bool = True,
) -> Analysis:
    """Examine one plan in full: baseline, compile cost, consistency, economics, memory, correctness, scaling.

    Everything runs in separate processes. Nothing is compiled in this one, and the model is not changed.

    Args:
        model: an `nn.Module`, a function, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple (or one tensor).
        kwargs: example keyword arguments.
        examples: several example inputs with weights, in place of `args`.
        plan: a plan or a decision, "eager", a mode of `torch.compile` such as "max-autotune", a plan as JSON, or the id
            of a decided plan. The default is plain `torch.compile`.
        calls: expected calls over the lifetime of the deployment, from which the savings are calculated.
        restarts: process starts over that lifetime.
        effort: "quick", "standard" or "thorough".
        mode: "inference" or "training" (with a backward pass).
        objective: "latency", or "throughput" to issue calls back to back.
        device: "cpu" or "cuda", by default the device of the model and its inputs, and for a target "cuda" if
            available.
        batches: batch sizes to try the plan on as well, each compiled separately.
        batch_dim: the dimension of the batch, the same in every input. By default it is found.
        limit: seconds after which one phase is ended.
        store: URL or file of the store, for the id of a plan, by default in the user's data directory.
        progress: whether to show the progress.

    Raises:
        InputError: an argument cannot be used, or the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
    """
    from torchwise.report.progress import AnalyzeProgress
    from torchwise.runtime import unwrap
    from torchwise.workload.identity import structure

    model = model if isinstance(model, (str, Workload)) else unwrap(model)
    workload = read_workload(model, args, kwargs, examples)
    spec = make_spec(model, workload, device, mode=mode, objective=objective, calls=calls, restarts=restarts)
    request = AnalyzeRequest(spec, plan_of(plan, store), effort, tuple(batches), batch_dim, limit)
    display: AbstractContextManager[Any] = AnalyzeProgress() if progress else nullcontext(Listener())
    with sent(workload, spec.target) as file, display as listener:
        # The structure is read here, in the process that has the model's source code.
        model_structure = structure(workload.call) if workload else None
        request = replace(request, source=file.source, settings=file.settings, structure=model_structure)
        return Analysis(run_analysis(request, ProcessLauncher(), listener))


@dataclass(frozen=True, slots=True)
class AnalyzeRequest:
    """One request to analyse.

    Attributes:
        workload: the model and its inputs, with the number of calls and restarts.
        plan: the plan to analyse.
        effort: "quick", "standard" or "thorough".
        batches: batch sizes to scale to, by default none, as each is compiled again.
        batch_dim: the dimension of the batch, or None to find it.
        limit_s: seconds after which one phase is ended.
        source: file with a live Python model for the workers, or None to load the target.
        settings: PyTorch's settings in the user's process, or None for its defaults.
        structure: the structure of a live Python model, read where its source code is, or None for a target.
    """

    workload: WorkloadSpec
    plan: Plan = DEFAULT
    effort: str = "standard"
    batches: tuple[int, ...] = ()
    batch_dim: int | None = None
    limit_s: float = LIMIT_S
    source: str | None = None
    settings: ProcessSettings | None = None
    structure: str | None = None

    def __post_init__(self) -> None:
        check_effort(self.effort)
        if not is_positive(self.limit_s):
            raise InputError(f"limit is {self.limit_s!r} s, but must be above 0")
        check_sizes(self.batches)


@dataclass(frozen=True, slots=True)
class SteadyRun(DerivedJob):
    """Has a worker start the job's plan warm, and time call after call.

    Attributes:
        job: workload, plan, effort, and the caches that a trial of this plan left.
    """

    job: Job

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return "torchwise.diagnose.analyze_worker:measure_steady"


def run_analysis(request: AnalyzeRequest, launcher: Launcher, listener: Listener) -> AnalysisRecord:
    """Run the phases, and derive the advice.

    Raises:
        InputError: the target or its inputs cannot be used.
        BaselineError: the original model fails.
    """
    here = environment.detect(request.workload.device)
    return _Phases(request, launcher, listener).run(here)


class _Phases:
    def __init__(self, request: AnalyzeRequest, launcher: Launcher, listener: Listener) -> None:
        self._request = request
        self._launcher = launcher
        self._listener = listener
        self._job = Job(
            "inspect",
            request.workload,
            request.plan,
            request.source,
            effort=EFFORTS[request.effort],
            settings=request.settings,
            structure=request.structure,
        )

    def run(self, here: environment.Environment) -> AnalysisRecord:
        started, created_at = time.monotonic(), time.time()
        inspection = self._inspect()
        with own_caches() as folder:
            trial = self._cold(folder)
            trial, steady = self._warm(trial, folder)
        batches, note, size = self._try_batch_sizes(trial)
        record = AnalysisRecord(
            self._request.workload,
            here,
            inspection,
            trial,
            steady,
            batches,
            note,
            effort=self._request.effort,
            created_at=created_at,
            seconds=time.monotonic() - started,
            batch_size=size,
        )
        return replace(record, advice=advise(record), trust=record.judge_trust())

    def _inspect(self) -> Inspection:
        self._listener.start_step("profiling the model")
        inspection = inspect_workload(self._launcher, self._job, self._limits(), self._listener.stage)
        self._job = replace(self._job, task="try", traits=inspection.traits)
        return inspection

    def _cold(self, folder: str) -> Trial:
        self._listener.start_step(f"{self._request.plan}, with empty caches")
        job, trial = replace(self._job, cache_dir=folder), Trial(0, self._request.plan, started_at=time.time())
        trial = try_plan(self._launcher, job, trial, self._limits(), self._listener.stage, warm=False)
        return (
            replace(trial, reason=f"verified: {trial.verdict.reason}") if trial.is_verified and trial.verdict else trial
        )

    def _warm(self, trial: Trial, folder: str) -> tuple[Trial, Steady | None]:
        """Start a verified plan once more: one that fails then would fail at a restart in production."""
        if not trial.is_verified or trial.costs is None:
            return trial, None
        self._listener.start_step(f"{self._request.plan}, with full caches")
        steady = self._ask_worker(SteadyRun(replace(self._job, cache_dir=folder)), Steady)
        if isinstance(steady, Failure):
            again = replace(steady, message=f"in a second process, from warm caches: {steady.message}")
            return replace(trial, state=TrialState.FAIL, failure=again, reason=str(again)), None
        costs = replace(trial.costs, warm_s=steady.warm_s)
        return replace(trial, costs=costs), steady

    def _try_batch_sizes(self, trial: Trial) -> tuple[tuple[Batch, ...], str, int | None]:
        """Return the batch sizes, a note about them, and the size of the inputs as they were given."""
        request = self._request
        if not request.batches:
            return (), "", None
        if not trial.is_verified:
            return (), "not scaled: the plan is not verified on the given inputs", None
        self._listener.start_step("the batch dimension")
        try:
            batch = self._ask_worker(Scaling(self._job, dim=request.batch_dim), BatchDim)
        except InputError as error:
            return (), f"not scaled: {error}", None
        if isinstance(batch, Failure):
            return (), f"not scaled: {batch.message}", None
        note = f"dimension {batch.dim} of the inputs, of size {batch.size} in the given inputs"
        return tuple(self._batch(size, batch.dim) for size in dict.fromkeys(request.batches)), note, batch.size

    def _batch(self, size: int, dim: int) -> Batch:
        self._listener.start_step(f"batch {size}")
        with own_caches() as folder:
            job = replace(self._job, cache_dir=folder, effort=EFFORTS["quick"])
            try:
                attempt = self._ask_worker(Scaling(job, size, dim), Attempt)
            except InputError as error:  # if a live model cannot be pickled again, only this batch's result fails
                return Batch(size, reason=str(error))
        if isinstance(attempt, Failure):
            return Batch(size, reason=str(attempt))
        reason = "" if attempt.measurement else f"not verified: {attempt.verdict.reason}"
        return Batch(size, attempt.measurement, attempt.costs, reason)

    def _ask_worker(self, job: Assignment, kind: type[T]) -> T | Failure:
        return ask_worker(self._launcher, job, kind, self._request.limit_s, self._listener.stage)

    def _limits(self) -> Limits:
        return Limits.from_free_memory(self._request.limit_s)
