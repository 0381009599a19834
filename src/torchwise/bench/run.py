"""The loop of a benchmark over targets and contenders. A failure costs one row only."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torchwise import environment
from torchwise.bench.contenders import Contender, Setting, find
from torchwise.bench.job import ContenderJob, HardwareSurvey, Step
from torchwise.bench.repeats import next_duel, next_repeat
from torchwise.bench.request import OURS, BenchRequest
from torchwise.errors import BaselineError, InputError, InternalError
from torchwise.plan import Plan
from torchwise.records import Failure, Measurement, WorkerStage, codec
from torchwise.records.benchmark import EAGER, Benchmark, Peaks, Performance, Row, RowState, rivals_of
from torchwise.records.scale import scale_of
from torchwise.report.outcome_text import why
from torchwise.study import Caches, Silent, run_study
from torchwise.trial import Job, Launcher, Limits, inspect_workload, own_caches
from torchwise.trial.job import EFFORTS, Restart
from torchwise.workload import WorkloadSpec


class BenchListener(Protocol):
    """Receives the progress of a benchmark."""

    def target(self, workload: WorkloadSpec, number: int, total: int) -> None:
        """Called when target `number` of `total`, counted from 1, starts."""

    def contender(self, name: str) -> None:
        """Called when a contender starts."""

    def step(self, what: str) -> None:
        """Called when a contender starts its next step: a trial of its search, or a duel."""

    def stage(self, name: str) -> None:
        """Called when the worker enters a stage."""

    def row(self, benchmark: Benchmark, row: Row) -> None:
        """Called when a row is done. The benchmark contains it."""

    def update_row(self, benchmark: Benchmark, row: Row) -> None:
        """Called when a finished row was timed again in another process. The benchmark contains its new form."""


class _Searching(Silent):
    """Passes the progress of a search on to a benchmark's listener."""

    def __init__(self, listener: BenchListener) -> None:
        self._listener = listener

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:  # noqa: ARG002 - a line has no room for it
        self._listener.step(f"{OURS}: trial {number}: {plan}")

    def start_comparison(self, plan: Plan, rival: Plan) -> None:
        self._listener.step(f"{OURS}: {plan} beside {rival}")

    def stage(self, name: str) -> None:
        self._listener.stage(name)


def run_benchmark(
    request: BenchRequest, launcher: Launcher, listener: BenchListener, earlier: Benchmark | None = None
) -> Benchmark:
    """Run every contender on every target.

    Args:
        request: the benchmark to run.
        launcher: runs the workers.
        listener: receives every row as soon as it is done, so that it can be stored.
        earlier: a benchmark to continue. Its rows do not run again.

    Raises:
        InputError: a contender or a target does not exist, or `earlier` is of another machine or other software.
    """
    here = environment.detect(request.device)
    if earlier and (different := earlier.environment.differences(here)):
        raise InputError(
            f"the benchmark to go on with is of another environment ({'; '.join(different)}), and results of unlike "
            "environments are never merged: export to another file"
        )
    contenders = find(request.contenders)
    _refuse_other_requests(request, earlier)
    return _Loop(request, launcher, listener, contenders, earlier or Benchmark(here, time.time())).run()


def _refuse_other_requests(request: BenchRequest, earlier: Benchmark | None) -> None:
    for row in earlier.rows if earlier else ():
        before, now = row.workload, request.workload(row.workload.target)
        if before.target in request.targets and row.key == Row(now, row.contender).key and before != now:
            raise InputError(
                f"the benchmark to go on with ran {before.target} for {before.calls:,} calls with seed {before.seed}, "
                f"but {now.calls:,} calls and seed {now.seed} are asked for: export to another file"
            )


def _peaks(request: BenchRequest, launcher: Launcher, listener: BenchListener) -> Peaks | None:
    spec = WorkloadSpec("peaks", device=request.device)  # type: ignore[arg-type]
    survey = HardwareSurvey(Job("inspect", spec))
    answer = launcher.run(survey, Limits.from_free_memory(request.limit_s), listener.stage)
    return None if isinstance(answer, Failure) else codec.from_json(answer, Peaks)


class _Loop:
    def __init__(
        self,
        request: BenchRequest,
        launcher: Launcher,
        listener: BenchListener,
        contenders: list[Contender],
        benchmark: Benchmark,
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._listener = listener
        self._contenders = contenders
        self._benchmark = benchmark
        self._end = time.monotonic() + (request.budget_s or float("inf"))
        self._is_surveyed = benchmark.peaks is not None

    def run(self) -> Benchmark:
        for number, target in enumerate(self._request.targets, 1):
            workload = self._request.workload(target)
            missing = [c for c in self._contenders if not self._has(workload, c.name)]
            if missing and not self._is_out_of_time():
                self._listener.target(workload, number, len(self._request.targets))
                self._run_target(workload, missing)
        return self._benchmark

    def _has(self, workload: WorkloadSpec, contender: str) -> bool:
        key = Row(workload, contender).key  # a refused target may have been fixed since
        return any(row.key == key and not row.refused for row in self._benchmark.rows)

    def _is_out_of_time(self) -> bool:
        return time.monotonic() >= self._end

    def _run_target(self, workload: WorkloadSpec, contenders: list[Contender]) -> None:
        job = Job("inspect", workload, effort=EFFORTS[self._request.effort])
        try:
            inspection = inspect_workload(self._launcher, job, self._limits(), self._listener.stage)
        except (BaselineError, InputError, InternalError) as error:  # this target cannot run here, but others can
            refused = isinstance(error, InputError)
            reason = f"the plain model: {error}" if isinstance(error, BaselineError) else str(error)
            for contender in contenders:
                self._keep(Row(workload, contender.name, state=RowState.FAILED, reason=reason, refused=refused))
            return
        self._survey()
        job = replace(job, task="try", traits=inspection.traits)
        with contextlib.ExitStack() as kept:
            contests: dict[str, ContenderJob] = {}
            for contender in contenders:
                if self._is_out_of_time():
                    return
                self._listener.contender(contender.name)
                cold = self._request.cold and contender.name != EAGER  # eager would be its own baseline
                own = replace(job, cache_dir=kept.enter_context(own_caches()), cold=cold)
                contests[contender.name] = ContenderJob("contend", own, contender.name)
                self._keep(self._row(workload, contender, contests))
            self._resolve_ties(workload, contests)

    def _survey(self) -> None:
        """Measure the hardware once, after a target has run: a misspelt target must not wait for that."""
        if not self._is_surveyed:
            self._is_surveyed = True
            peaks = _peaks(self._request, self._launcher, self._listener)
            self._benchmark = replace(self._benchmark, peaks=peaks)

    def _row(self, workload: WorkloadSpec, contender: Contender, contests: dict[str, ContenderJob]) -> Row:
        """Run one contender with its own caches. A duel also uses the others' caches."""
        row, cold_s = Row(workload, contender.name), None
        try:
            if absent := contender.missing(Setting(workload.device, workload.mode)):
                return replace(row, state=RowState.MISSING, reason=absent)
            if contender.name == OURS:
                row, contests[OURS], cold_s = self._decide_plan(row, contests[OURS])
        except Exception as error:  # a plug-in may raise any error, and a search may fail: that is the row's result
            return replace(row, state=RowState.FAILED, reason=f"{type(error).__name__}: {error}")
        contest = contests[contender.name]
        answer = self._ask(contest)
        if isinstance(answer, Failure):
            return replace(row, state=RowState.FAILED, failure=answer, reason=str(answer))
        performance = codec.from_json(answer, Performance)
        if cold_s is not None:  # this was a warm start, then
            costs = replace(performance.costs, cold_s=cold_s, warm_s=performance.costs.cold_s)
            row = replace(row, performance=replace(performance, costs=costs))
        else:
            row = replace(row, performance=performance)
            row = self._restart(row, contest, keeps_seconds=True) if self._request.warm else row
        return self._with_duel(row, contests) if contender.name == OURS else row

    def _resolve_ties(self, workload: WorkloadSpec, contests: dict[str, ContenderJob]) -> None:
        """Time candidates for the fastest in more processes, within effort and budget."""
        effort, meets = EFFORTS[self._request.effort], set(contests)
        while not self._is_out_of_time():
            scale = scale_of(self._benchmark, workload)
            if row := next_duel(scale, effort, meets):
                assert row.rival is not None, "a duel is with a rival"
                self._listener.step(f"{OURS}: {row.plan} beside {row.rival} in another process")
                answer = self._duel(contests, row.rival)
                if isinstance(answer, Failure):
                    meets.clear()
                    row = _with_reason(row, f"beside {row.rival} in another process: {answer}")
                else:
                    row = replace(row, duel_repeats=(*row.duel_repeats, answer))
            elif row := next_repeat(scale, effort, contests):
                self._listener.step(f"{row.contender} in another process")
                row = self._restart(row, contests[row.contender])
            else:
                return
            self._put(row)
            self._listener.update_row(self._benchmark, row)

    def _decide_plan(self, row: Row, contest: ContenderJob) -> tuple[Row, ContenderJob, float | None]:
        """Search, or choose from the given plans, and return the seconds of the plan's first call in its trial.

        The trial started with empty caches and leaves them to the contest, so nothing compiles twice. The seconds are
        None if there are no caches to leave.

        The search has its own store, as earlier results must not hide its cost. It also has its own budget: a shortened
        search would not show the results of Torchwise.
        """
        from torchwise.store import open_storage

        asked = self._request.study(row.workload)
        with (
            tempfile.TemporaryDirectory(prefix="torchwise-bench-") as folder,
            open_storage(f"{folder}/s.db") as storage,
            Caches() as caches,
        ):
            study = run_study(asked, storage, self._launcher, _Searching(self._listener), caches=caches)
            assert study.decision is not None
            plan = study.decision.plan
            left = _copy_caches(caches.list_folders(plan), contest.job.cache_dir)
        tried = [f"{trial.plan}: {why(trial, study)}" for trial in study.trials]
        took = None if self._request.plans else study.seconds
        self._listener.step(f"{OURS}: {plan}, with its checks")
        row = replace(row, plan=plan, precision=plan.precision, search_s=took, searched=(*tried, *study.excluded))
        contest = replace(contest, decision=study.decision.to_json())
        return row, contest, study.decision.cold_s if left else None

    def _restart(self, row: Row, contest: ContenderJob, *, keeps_seconds: bool = False) -> Row:
        """Start the contender again from warm caches, and time it against eager.

        `keeps_seconds` keeps the seconds of this start.
        """
        if row.performance is None:
            return row
        answer = self._ask(_with_step("warm", contest))
        if isinstance(answer, Failure):
            which = "from warm caches" if keeps_seconds else "in another process"
            return replace(row, state=RowState.FAILED, failure=answer, reason=f"{which}: {answer}")
        found, performance = codec.from_json(answer, Restart), row.performance
        if keeps_seconds:
            performance = replace(performance, costs=replace(performance.costs, warm_s=found.warm_s))
        return replace(row, performance=replace(performance, repeats=(*performance.repeats, found.measurement)))

    def _with_duel(self, row: Row, contests: Mapping[str, ContenderJob]) -> Row:
        """Time our choice against the fastest of the others once more, both in one process.

        If two may be the fastest, time it against each. The row keeps the worse result for us.
        """
        if not row.is_right:
            return row
        for rival in rivals_of(self._benchmark.select_rows(row.workload), row):
            self._listener.step(f"{OURS}: {row.plan} beside {rival.contender}")
            answer = self._duel(contests, rival.contender)
            if isinstance(answer, Failure):
                row = _with_reason(row, f"beside {rival.contender}: {answer}")
                row = replace(row, rival=row.rival or rival.contender)
            elif row.duel is None or answer.speedup.mid < row.duel.speedup.mid:
                row = replace(row, rival=rival.contender, duel=answer)
        return row

    def _duel(self, contests: Mapping[str, ContenderJob], rival: str) -> Measurement | Failure:
        """Time both in one process.

        They reuse their compiled code: those kernels were timed, and compilation is no part of a duel.
        """
        contest = contests[OURS]
        with own_caches(contests[name].job.cache_dir for name in (OURS, rival) if name in contests) as folder:
            job = replace(contest.job, cache_dir=folder)
            answer = self._ask(replace(_with_step("duel", contest), rival=rival, job=job))
        return answer if isinstance(answer, Failure) else codec.from_json(answer, Measurement)

    def _ask(self, contest: ContenderJob) -> str | Failure:
        """Run a worker, and without cold caches once more if it ended while it timed them."""
        answer = self._launcher.run(contest, self._limits(), self._listener.stage)
        if isinstance(answer, Failure) and answer.stage == WorkerStage.MEASURE_COLD:
            job = replace(contest.job, cold=False)
            answer = self._launcher.run(replace(contest, job=job), self._limits(), self._listener.stage)
        return answer

    def _limits(self) -> Limits:
        return Limits.from_free_memory(self._request.limit_s)

    def _keep(self, row: Row) -> None:
        others = (other for other in self._benchmark.rows if other.key != row.key)  # a refused row was tried again
        self._benchmark = replace(self._benchmark, rows=(*others, row))
        self._listener.row(self._benchmark, row)

    def _put(self, row: Row) -> None:
        """Replace a row in its place."""
        rows = tuple(row if other.key == row.key else other for other in self._benchmark.rows)
        self._benchmark = replace(self._benchmark, rows=rows)


def _with_step(step: Step, contest: ContenderJob) -> ContenderJob:
    return replace(contest, step=step)


def _with_reason(row: Row, reason: str) -> Row:
    return replace(row, reason="; ".join(filter(None, [row.reason, reason])))


def _copy_caches(folders: Sequence[str], cache_dir: str) -> bool:
    """Copy the folders' files to `cache_dir`, all or nothing, and return whether there are any."""
    try:
        for folder in folders:
            shutil.copytree(folder, cache_dir, dirs_exist_ok=True)
    except OSError:  # such as a full disk: the plan compiles again
        shutil.rmtree(cache_dir, ignore_errors=True)
        Path(cache_dir).mkdir(exist_ok=True)
        return False
    return bool(folders)
