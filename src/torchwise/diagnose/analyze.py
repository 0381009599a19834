"""`analyze`: examine one plan in full, phase by phase. A worker runs each, and a failure is a result too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.diagnose.analyze_advice import advise
from torchwise.diagnose.batches import Scaling, check_sizes
from torchwise.diagnose.requests import DEFAULT, choice_of, make_spec, plan_of
from torchwise.errors import InputError, is_positive
from torchwise.keywords import checked_keywords
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS, check_effort
from torchwise.plan.workload_spec import DEFAULT_CALLS, BatchDim, WorkloadSpec
from torchwise.records import Decision, Failure, Measurement, Trial, codec
from torchwise.records.analysis import Advice, Batch, Steady
from torchwise.records.analysis import Analysis as AnalysisRecord
from torchwise.records.listener import Listener
from torchwise.records.trial import with_repeat
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import DerivedJob, Job, Launcher, ProcessLauncher, ProcessSettings, own_caches, send_model
from torchwise.trial.run_trial import in_second_process
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload

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


@checked_keywords()
def analyze(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    plan: Plan | Decision | str | None = None,
    calls: float = DEFAULT_CALLS,
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
        model: an `nn.Module`, a function, a `TrainStep`, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple (or one tensor). For a `TrainStep`, a batch `(inputs, *targets)`.
        kwargs: example keyword arguments.
        examples: several example inputs with weights, in place of `args`.
        plan: a plan or a decision, a plan's words, such as "eager" or "inductor + freezing", a mode of `torch.compile`,
            a plan as JSON, or the id of a decided plan. The default is plain `torch.compile`.
        calls: expected calls over the lifetime of the deployment, from which the savings are calculated.
        restarts: process starts over that lifetime.
        effort: "quick", "standard" or "thorough".
        mode: "inference" or "training" (with a backward pass). A `TrainStep` is always run for training.
        objective: "latency", or "throughput" to issue calls back to back.
        device: "cpu" or "cuda", by default that of the model and its inputs, or for a target "cuda" if available.
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
    chosen = choice_of(plan, store)
    spec = make_spec(model, workload, device, chosen, mode=mode, objective=objective, calls=calls, restarts=restarts)
    request = AnalyzeRequest(spec, plan_of(chosen), effort, tuple(batches), batch_dim, limit)
    display: AbstractContextManager[Any] = AnalyzeProgress() if progress else nullcontext(Listener())
    with send_model(workload, spec.target) as file, display as listener:
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

    @property
    def job(self) -> Job:
        """The order to try the plan."""
        return Job(
            "try",
            self.workload,
            self.plan,
            self.source,
            effort=EFFORTS[self.effort],
            settings=self.settings,
            structure=self.structure,
        )


@dataclass(frozen=True, slots=True)
class EagerAtBatch(DerivedJob):
    """Has a worker time eager at the job's batch size against eager at the size of the given inputs, in alternation.

    Attributes:
        job: the workload, at the batch size to time.
        given: the batch size of the given inputs.
    """

    FUNCTION = "torchwise.diagnose.analyze_worker:time_eager"
    job: Job
    given: int


@dataclass(frozen=True, slots=True)
class SteadyRun(DerivedJob):
    """Has a worker start the job's plan warm, and time call after call.

    Attributes:
        job: workload, plan, effort, and the caches that a trial of this plan left.
    """

    FUNCTION = "torchwise.diagnose.analyze_worker:measure_steady"
    job: Job


def run_analysis(request: AnalyzeRequest, launcher: Launcher, listener: Listener) -> AnalysisRecord:
    """Study the one plan, measure it further, and derive the advice.

    Raises:
        InputError: the target or its inputs cannot be used.
        BaselineError: the original model fails.
    """
    started, created_at = time.monotonic(), time.time()
    here = environment.detect(request.workload.device)
    study = PlanStudy(request.job, launcher, request.limit_s, listener.stage)
    listener.start_step("profiling the model")
    inspection = study.inspect()
    with own_caches() as folder:
        listener.start_step(f"{request.plan}, with empty caches")
        trial = study.try_plan(cache_dir=folder)
        steady = None
        if trial.is_verified and trial.verdict:
            trial = replace(trial, reason=f"verified: {trial.verdict.reason}")
            listener.start_step(f"{request.plan}, with full caches")
            trial, steady = _start_again(study, trial, folder)
    batches, note, size = _scale(study, request, trial, listener) if request.batches else ((), "", None)
    record = AnalysisRecord(
        request.workload,
        here,
        inspection,
        trial,
        steady,
        batches,
        note,
        effort=request.effort,
        created_at=created_at,
        seconds=time.monotonic() - started,
        batch_size=size,
    )
    return replace(record, advice=advise(record), trust=record.judge_trust())


def _start_again(study: PlanStudy, trial: Trial, folder: str) -> tuple[Trial, Steady | None]:
    """Start a verified plan once more: one that fails then would fail at a restart in production."""
    steady = study.ask(SteadyRun(replace(study.job, cache_dir=folder)), Steady)
    if isinstance(steady, Failure):
        return with_repeat(trial, in_second_process(steady)), None
    assert trial.costs is not None, "a verified plan has costs"
    return replace(trial, costs=replace(trial.costs, warm_s=steady.warm_s)), steady


def _scale(
    study: PlanStudy, request: AnalyzeRequest, trial: Trial, listener: Listener
) -> tuple[tuple[Batch, ...], str, int | None]:
    """Try the plan at other batch sizes.

    Returns:
        The sizes, a note about them, and the size of the inputs as they were given.
    """
    if not trial.is_verified:
        return (), "not scaled: the plan is not verified on the given inputs", None
    listener.start_step("the batch dimension")
    try:
        batch = study.ask(Scaling(study.job, request.batch_dim), BatchDim)
    except InputError as error:
        return (), f"not scaled: {error}", None
    if isinstance(batch, Failure):
        return (), f"not scaled: {batch.message}", None
    tried = []
    for size in dict.fromkeys(request.batches):
        listener.start_step(f"batch {size}")
        tried.append(_try_batch(study, BatchDim(batch.dim, size), batch.size))
    return tuple(tried), f"dimension {batch.dim} of the inputs, of size {batch.size} in the given inputs", batch.size


def _try_batch(study: PlanStudy, batch: BatchDim, given: int) -> Batch:
    """Try the plan at a batch size, and time eager there against eager at the size of the given inputs.

    Sizes are timed in processes of their own, at other moments. Only the ratio of one moment puts them on one scale.
    """
    try:
        trial = study.try_plan(batch=batch, effort=EFFORTS["quick"])
        job = replace(study.job, batch=batch, effort=EFFORTS["quick"])
        eager = study.ask(EagerAtBatch(job, given), Measurement) if trial.is_verified and batch.size != given else None
    except InputError as error:  # such as a factory that fails now and then: only this batch's result fails
        return Batch(batch.size, reason=str(error))
    scale = eager if isinstance(eager, Measurement) else None
    return Batch(batch.size, trial.measurement, trial.costs, "" if trial.is_verified else trial.reason, scale)
