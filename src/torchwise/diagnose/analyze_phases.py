"""The phases of an analysis, one after the other: a worker runs each, and a failure is a result too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from torchwise import environment
from torchwise.compile import compile_plan
from torchwise.diagnose.analyze_advice import advise
from torchwise.diagnose.batches import BatchDim, Scaling, check_sizes
from torchwise.diagnose.requests import DEFAULT, ask_worker
from torchwise.errors import InputError, is_positive
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.measure.memory import peak_memory
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS, check_effort
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, Inspection, Trial, TrialState
from torchwise.records.analysis import CALLS_PER_TURN, Analysis, Batch, Consistency, Memory, Steady
from torchwise.trial import (
    Assignment,
    DerivedJob,
    Job,
    Launcher,
    Limits,
    ProcessSettings,
    inspect_workload,
    own_caches,
    try_plan,
)
from torchwise.trial.harness import Harness
from torchwise.trial.job import Attempt
from torchwise.workload import Workload, pytree
from torchwise.workload.layouts import size_of

T = TypeVar("T")
LIMIT_S = 600.0
"""Seconds after which a phase is ended. The longest compile among the reference workloads took 238 s."""
MIN_TURNS, MAX_CALLS = 3, 4000


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


class AnalyzeListener(Protocol):
    """Hears about the progress of an analysis."""

    def phase(self, name: str) -> None:
        """A phase has begun."""

    def stage(self, name: str) -> None:
        """The worker has entered a stage."""


class Silent:
    """A listener that says nothing."""

    def phase(self, *_: object) -> None:
        """Say nothing."""

    stage = phase


def run_analysis(request: AnalyzeRequest, launcher: Launcher, listener: AnalyzeListener) -> Analysis:
    """Run the phases, and derive the advice.

    Raises:
        InputError: the target or its inputs cannot be used.
        BaselineError: the original model fails.
    """
    here = environment.detect(request.workload.device)
    return _Phases(request, launcher, listener).run(here)


class _Phases:
    def __init__(self, request: AnalyzeRequest, launcher: Launcher, listener: AnalyzeListener) -> None:
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

    def run(self, here: environment.Environment) -> Analysis:
        started, created_at = time.monotonic(), time.time()
        inspection = self._inspect()
        with own_caches() as folder:
            trial = self._cold(folder)
            trial, steady = self._warm(trial, folder)
        batches, note, size = self._try_batch_sizes(trial)
        record = Analysis(
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
        self._listener.phase("profiling the model")
        inspection = inspect_workload(self._launcher, self._job, self._limits(), self._listener.stage)
        self._job = replace(self._job, task="try", traits=inspection.traits)
        return inspection

    def _cold(self, folder: str) -> Trial:
        self._listener.phase(f"{self._request.plan}, with empty caches")
        job, trial = replace(self._job, cache_dir=folder), Trial(0, self._request.plan, started_at=time.time())
        trial = try_plan(self._launcher, job, trial, self._limits(), self._listener.stage, warm=False)
        return (
            replace(trial, reason=f"verified: {trial.verdict.reason}") if trial.is_verified and trial.verdict else trial
        )

    def _warm(self, trial: Trial, folder: str) -> tuple[Trial, Steady | None]:
        """Start a verified plan once more: one that fails then would fail at a restart in production."""
        if not trial.is_verified or trial.costs is None:
            return trial, None
        self._listener.phase(f"{self._request.plan}, with full caches")
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
        self._listener.phase("the batch dimension")
        try:
            batch = self._ask_worker(Scaling(self._job, dim=request.batch_dim), BatchDim)
        except InputError as error:
            return (), f"not scaled: {error}", None
        if isinstance(batch, Failure):
            return (), f"not scaled: {batch.message}", None
        note = f"dimension {batch.dim} of the inputs, of size {batch.size} in the given inputs"
        return tuple(self._batch(size, batch.dim) for size in dict.fromkeys(request.batches)), note, batch.size

    def _batch(self, size: int, dim: int) -> Batch:
        self._listener.phase(f"batch {size}")
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
        return "torchwise.diagnose.analyze_phases:measure_steady"


def measure_steady(request: SteadyRun, stage: Callable[[str], None]) -> Steady:
    """Start the plan from the caches of an earlier process, and time each call by itself."""
    harness, plan = Harness(request.job), request.job.plan
    with harness.gradients():
        example = harness.workload.examples[0]
        compiled = compile_plan(harness.workload.call, plan, example, device=harness.device, mode=harness.mode)
        calls = harness.runners(compiled.call)
        stage("warm compile")
        warm: list[float] = []
        start = peak_memory(lambda: warm.append(harness.first_calls(calls)), harness.device)
        stage("measure")
        common = _commonest(harness.workload)
        plan_calls, eager_calls = _time_alternately(
            calls[common], harness.eager[common], harness.device, request.job.effort.measure_s
        )
        stage("memory")
        call, baseline = harness.memory(calls)
    memory = replace(_static_memory(harness.workload), start=start, call=call, baseline_call=baseline)
    return Steady(warm[0], plan_calls, eager_calls, memory)


def _time_alternately(
    plan: Callable[[], Any], eager: Callable[[], Any], device: str, budget_s: float
) -> tuple[Consistency, Consistency]:
    """Time single calls of both sides, some of one and then some of the other, until the budget is spent.

    Garbage collection stays on, as in any program: its pauses belong to the measurement.
    """
    clock, sides = Clock(device), (plan, eager)
    seconds: tuple[list[float], list[float]] = ([], [])
    with device_lock.alone():
        for side in sides:  # the first call after a pause is not a steady one
            clock.once(side)
        deadline = time.perf_counter() + budget_s
        while len(seconds[0]) < MAX_CALLS and (
            len(seconds[0]) < MIN_TURNS * CALLS_PER_TURN or time.perf_counter() < deadline
        ):
            for side, side_seconds in zip(sides, seconds, strict=True):
                side_seconds += [clock.once(side) for _ in range(CALLS_PER_TURN)]
    return Consistency(tuple(seconds[0])), Consistency(tuple(seconds[1]))


def _commonest(workload: Workload) -> int:
    """Return the index of the most frequent example: across a mix, calls would differ by their shapes alone."""
    weights = [example.weight for example in workload.examples]
    return weights.index(max(weights))


def _static_memory(workload: Workload) -> Memory:
    module, inputs = workload.module, [_bytes((e.args, dict(e.kwargs))) for e in workload.examples]
    weights = () if module is None else (*module.parameters(), *module.buffers())
    return Memory(sum(map(size_of, {id(t): t for t in weights}.values())), max(inputs))


def _bytes(tree: Any) -> int:
    return sum(map(size_of, pytree.tensors(tree)))
