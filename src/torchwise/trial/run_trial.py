"""One trial from the parent's side: send the model, launch, listen, and turn every outcome into a record."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchwise.plan import Plan
from torchwise.records import (
    Costs,
    Duel,
    Failure,
    FailureKind,
    Inspection,
    Measurement,
    Outcome,
    Trial,
    TrialState,
    Verdict,
    WorkerStage,
    codec,
)
from torchwise.records.measurement import INTERFERENCE_FACTOR
from torchwise.records.trial import WAITING, with_repeat
from torchwise.records.verdict import compare_processes
from torchwise.trial.error_origin import make_failure_error
from torchwise.trial.job import Attempt, Job, ProcessSettings, Restart
from torchwise.trial.launcher import Launcher, OnStage
from torchwise.trial.limits import Limits
from torchwise.trial.worker import Assignment

if TYPE_CHECKING:
    from torchwise.workload import Workload

T = TypeVar("T")
DUEL_WIDTH = 0.01
"""Relative half-width of a duel's interval at which it stops: plans count as tied within 2 %."""


def ask_worker(launcher: Launcher, job: Assignment, kind: type[T], limits: Limits, on_stage: OnStage) -> T | Failure:
    """Have a worker do a job, and return its answer of this kind, or how it failed.

    Raises:
        InputError: the job cannot be used.
    """
    answer = launcher.run(job, limits, on_stage)
    return answer if isinstance(answer, Failure) else codec.from_json(answer, kind)


def inspect_workload(launcher: Launcher, job: Job, limits: Limits, on_stage: OnStage) -> Inspection:
    """Inspect the plain model in a worker.

    Raises:
        InputError: the target or its inputs cannot be used.
        BaselineError: the plain model raises, dies, hangs or runs out of memory.
        InternalError: Torchwise fails during the inspection, and the plain model does not.
        BudgetError: the budget of the command is spent.
    """
    answer = ask_worker(launcher, job, Inspection, limits, on_stage)
    if isinstance(answer, Failure):
        raise make_failure_error(answer, lambda: launcher.run(replace(job, task="check"), limits, on_stage))
    return answer


def try_plan(
    launcher: Launcher,
    job: Job,
    trial: Trial,
    limits: Limits,
    on_stage: OnStage,
    *,
    starts_again: Callable[[Trial], bool] = lambda _: True,
) -> Trial:
    """Try `trial.plan` in a worker. If it beat eager, it may be started a second time, from warm caches.

    Args:
        launcher: where the workers run.
        job: of task "try". If it names no folder for caches they are deleted at the end.
        trial: as it was claimed, state RUNNING.
        limits: of each worker.
        on_stage: called with each stage as it begins.
        starts_again: whether a plan that beat eager is started once more, by its trial so far.

    Returns:
        The trial, finished: COMPLETE, PRUNED or FAIL, with the reason in words.
    """
    spent = Stopwatch(on_stage)
    with nullcontext(job.cache_dir) if job.cache_dir else own_caches() as folder:
        job = replace(job, task="try", plan=trial.plan, cache_dir=folder)
        answer = ask_worker(launcher, job, Attempt, limits, spent.stage)
        if isinstance(answer, Failure):
            finished = replace(trial, state=TrialState.FAIL, failure=answer, reason=str(answer))
        else:
            finished = _record_verdict(trial, answer)
        # Only a plan that beat eager may be decided for, and only one that compiles has a warm cost. Further processes
        # will show whether it beats eager. Here it is enough that it did in its own.
        is_in_question = finished.is_promising and finished.plan.backend != "eager"
        if (is_in_question and starts_again(finished)) or (finished.digest and finished.is_verified):
            finished = _with_second_process(launcher, job, finished, limits, spent.stage)
    return replace(finished, seconds=spent.seconds)


def hold_duel(
    launcher: Launcher, job: Job, rival: Plan, limits: Limits, on_stage: OnStage, caches: Iterable[str] = ()
) -> Duel:
    """Time `job.plan` against a rival that was verified as well, both in one worker.

    Args:
        launcher: where the worker runs.
        job: of the plan's trial, with both plans' times in their trials.
        rival: the other plan.
        limits: of the worker.
        on_stage: called with each stage as it begins.
        caches: folders left by their trials. Code that is in none is compiled again.
    """
    spent = Stopwatch(on_stage)
    with own_caches(caches) as folder:
        effort = replace(job.effort, half_width=min(job.effort.half_width, DUEL_WIDTH))
        job = replace(job, task="duel", rival=rival, cache_dir=folder, effort=effort)
        found = ask_worker(launcher, job, Measurement, limits, spent.stage)
    if isinstance(found, Failure):
        return Duel(rival, failure=found, seconds=spent.seconds)
    times = found.times_as_long(job.expected_s)
    if times > INTERFERENCE_FACTOR:  # another program may slow down one of them and not both
        reason = f"one of the plans took {times:.1f} times as long as in its trial"
        return Duel(rival, failure=Failure(FailureKind.INTERFERED, WorkerStage.MEASURE, reason), seconds=spent.seconds)
    return Duel(rival, found, seconds=spent.seconds)


def _record_verdict(trial: Trial, attempt: Attempt) -> Trial:
    verdict, measurement = attempt.verdict, attempt.measurement
    found = replace(
        trial,
        verdict=verdict,
        measurement=measurement,
        costs=attempt.costs,
        graph_break=attempt.graph_break,
        instead=attempt.instead,
        digest=attempt.digest,
        share=attempt.share,
    )
    if verdict.lacks_property_alone and measurement is not None:
        return replace(found, state=TrialState.COMPLETE, reason=_describe_lack(verdict, found))
    if verdict.outcome is not Outcome.PASS or measurement is None:
        passing = f"; {attempt.instead[1]} passes" if attempt.instead else ""
        return replace(found, state=TrialState.COMPLETE, reason=f"not verified: {verdict.reason}{passing}")
    if measurement.pruned:
        reason = f"stopped early at {found.speedup}×: it could no longer lead"
        return replace(found, state=TrialState.PRUNED, reason=reason)
    return replace(found, state=TrialState.COMPLETE, reason=f"verified, {found.speedup}× eager's speed")


def _describe_lack(verdict: Verdict, trial: Trial) -> str:
    return f"refused, at {trial.speedup}× eager's speed, as it lacks a required property: {verdict.reason}"


def _with_second_process(launcher: Launcher, job: Job, trial: Trial, limits: Limits, on_stage: OnStage) -> Trial:
    """Return a verified trial with its warm cost. If bits must be equal in all processes, they are compared."""
    assert trial.verdict is not None
    restart = _restart(launcher, job, limits, on_stage)
    if isinstance(restart, Failure) and trial.digest and restart.kind is FailureKind.OUT_OF_BUDGET:
        # Without a second process nobody knows whether it gives equal bits, so another search tries the plan again.
        failure = in_second_process(restart)
        return replace(trial, state=TrialState.FAIL, failure=failure, reason=str(failure))
    if isinstance(restart, Failure):
        return with_repeat(trial, in_second_process(restart))
    if trial.digest:
        verdict = Verdict((*trial.verdict.checks, compare_processes(trial.digest, restart.digest)))
        if verdict.outcome is not Outcome.PASS:
            return replace(trial, verdict=verdict, reason=_describe_lack(verdict, trial))
        trial = replace(trial, verdict=verdict)
    assert trial.costs is not None
    costs: Costs = replace(trial.costs, warm_s=restart.warm_s)
    return with_repeat(replace(trial, costs=costs), restart.measurement)


def in_second_process(failure: Failure) -> Failure:
    """Return the failure of a restart, which says so."""
    return replace(failure, message=f"in a second process, from warm caches: {failure.message}")


def measure_again(
    launcher: Launcher, job: Job, limits: Limits, on_stage: OnStage, caches: Iterable[str] = (), digest: str = ""
) -> Restart | Failure:
    """Time the job's verified plan against eager in one more fresh process. `caches` are as for `hold_duel`.

    If a digest of the answers' bits is given, it is a failure if this process gives other bits.
    """
    with own_caches(caches) as folder:
        restart = _restart(launcher, replace(job, cache_dir=folder), limits, on_stage)
    if isinstance(restart, Failure):
        return replace(restart, message=f"in one more process: {restart.message}")
    alike = compare_processes(digest, restart.digest)
    if digest and alike.outcome is not Outcome.PASS:
        return Failure(FailureKind.UNSUPPORTED, WorkerStage.VERIFY, f"the plan is not {alike.name}: {alike.detail}")
    return restart


def _restart(launcher: Launcher, job: Job, limits: Limits, on_stage: OnStage) -> Restart | Failure:
    # A repeated measurement runs to its end: its plan was not pruned before.
    return ask_worker(launcher, replace(job, task="warm", prune_below=None), Restart, limits, on_stage)


@dataclass(frozen=True, slots=True)
class SentModel:
    """The file of a live model for the workers, and the settings of its process. Both are None for a target."""

    source: str | None = None
    settings: ProcessSettings | None = None


@contextmanager
def send_model(workload: Workload | None, name: str | None = None) -> Iterator[SentModel]:
    """Write a live model to a file, by default under its own name, while the workers need it. A target needs no file.

    Raises:
        WorkloadError: it cannot be pickled.
    """
    if workload is None:
        yield SentModel()
        return
    from torchwise.trial.loading import save

    with tempfile.TemporaryDirectory(prefix="torchwise-model-") as folder:
        source = str(Path(folder, "model.pt"))
        save(workload if name is None else replace(workload, name=name), source)
        yield SentModel(source, ProcessSettings.from_this_process())


@contextmanager
def own_caches(filled_from: Iterable[str] = ()) -> Iterator[str]:
    """Give a candidate a cache of its own, so that no other candidate's compilation hides its cold cost.

    It is empty, or filled from these folders. Files that cannot be copied are compiled again.
    """
    folder = tempfile.mkdtemp(prefix="torchwise-cache-")
    try:
        for other in filled_from:
            with suppress(OSError):
                shutil.copytree(other, folder, dirs_exist_ok=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Stopwatch:
    """Counts seconds from a start, by default its creation, except for stages in which a worker waits for others."""

    def __init__(self, on_stage: OnStage, start: float | None = None) -> None:
        self._on_stage = on_stage
        self._start = time.monotonic() if start is None else start
        self._waited_s = 0.0
        self._waits_since: float | None = None

    def stage(self, name: str) -> None:
        """Note that a stage begins."""
        now = time.monotonic()
        if self._waits_since is not None:
            self._waited_s += now - self._waits_since
        self._waits_since = now if name == WAITING else None
        self._on_stage(name)

    @property
    def seconds(self) -> float:
        """The seconds so far. A wait is left out once it is over, as a worker may end in it without a word."""
        return self.elapsed_s - self._waited_s

    @property
    def waited_s(self) -> float:
        """The seconds of waiting so far, a wait that is not over included."""
        since = self._waits_since  # read once: a worker of another thread may go on meanwhile
        return self._waited_s + (0.0 if since is None else time.monotonic() - since)

    @property
    def elapsed_s(self) -> float:
        """The seconds so far, waits included."""
        return time.monotonic() - self._start
