"""The loop of a benchmark over targets and contenders. A failure affects only one row.

A ratio differs between processes by more than its interval within one process (`records/processes.py`). So contenders
that may be the fastest are timed in further processes, until the fastest is known.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torchwise import environment
from torchwise.bench.contenders import Contender, Setting, find
from torchwise.bench.request import BenchRequest, ContenderJob, HardwareSurvey
from torchwise.command_start import budget_start
from torchwise.errors import BaselineError, BudgetError, InputError, InternalError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS, EffortProfile
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Measurement, WorkerStage
from torchwise.records.benchmark import EAGER, TORCHWISE, Benchmark, Peaks, Performance, Row, RowState, rivals_of
from torchwise.records.listener import Listener
from torchwise.records.processes import is_plain
from torchwise.records.reasons import why
from torchwise.records.scale import Scale, ScaledRow, may_be_faster, scale_of
from torchwise.records.statistics import Interval
from torchwise.study import Caches, run_study
from torchwise.trial import Budget, Job, Launcher, Limits, Stopwatch, ask_worker, inspect_workload, own_caches
from torchwise.trial.error_origin import make_budget_error
from torchwise.trial.job import Restart
from torchwise.trial.launcher import OnStage

T = TypeVar("T")


class _SearchListener(Listener):
    """Forwards the progress of a search to a benchmark's listener."""

    def __init__(self, listener: Listener, stage: OnStage) -> None:
        self._listener, self._stage = listener, stage

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:  # noqa: ARG002 - too long for a line
        self._listener.start_step(f"{TORCHWISE}: trial {number}: {plan}")

    def start_comparison(self, plan: Plan, rival: Plan) -> None:
        self._listener.start_step(f"{TORCHWISE}: {plan} against {rival}")

    def stage(self, name: str) -> None:
        self._stage(name)


def run_benchmark(
    request: BenchRequest, launcher: Launcher, listener: Listener, earlier: Benchmark | None = None
) -> Benchmark:
    """Run every contender on every target.

    Args:
        listener: receives every row as soon as it is done, so that it can be stored.
        earlier: a benchmark to continue. Its rows do not run again.
    """
    here = environment.detect(request.device)
    if earlier and (different := earlier.environment.differences(here)):
        raise InputError(
            f"the benchmark to resume is from another environment ({'; '.join(different)}), and results of different "
            "environments cannot be merged: write to another file"
        )
    contenders = find(request.contenders)
    _refuse_other_requests(request, earlier)
    return _Loop(request, launcher, listener, contenders, earlier or Benchmark(here, time.time())).run()


def _refuse_other_requests(request: BenchRequest, earlier: Benchmark | None) -> None:
    for row in earlier.rows if earlier else ():
        before, now = row.workload, request.workload(row.workload.target)
        if before.target in request.targets and row.key == Row(now, row.contender).key and before != now:
            raise InputError(
                f"the benchmark to resume ran {before.target} for {before.calls:,} calls with seed {before.seed}, "
                f"but the request has {now.calls:,} calls and seed {now.seed}: write to another file"
            )


class _Loop:
    def __init__(
        self,
        request: BenchRequest,
        launcher: Launcher,
        listener: Listener,
        contenders: list[Contender],
        benchmark: Benchmark,
    ) -> None:
        self._request = request
        self._budget = Budget(request.budget_s or math.inf, Stopwatch(listener.stage, budget_start()))
        self._launcher = self._budget.limit(launcher)
        self._listener = listener
        self._contenders = contenders
        self._benchmark = benchmark
        self._is_surveyed = benchmark.peaks is not None

    def run(self) -> Benchmark:
        for number, target in enumerate(self._request.targets, 1):
            workload = self._request.workload(target)
            missing = [c for c in self._contenders if not self._has(workload, c.name)]
            if not missing or self._budget.is_spent:
                continue
            self._listener.start_target(workload, number, len(self._request.targets))
            try:
                self._run_target(workload, missing)
            except BudgetError as error:  # its row is open, and `--resume` does it
                self._listener.note(str(error))
        if self._budget.is_spent and not self._benchmark.rows:
            raise BudgetError(f"{self._budget}, and no row is finished. Give a larger budget")
        return self._benchmark

    def _has(self, workload: WorkloadSpec, contender: str) -> bool:
        key = Row(workload, contender).key  # the user may have fixed a refused target
        return any(row.key == key and not row.refused for row in self._benchmark.rows)

    def _run_target(self, workload: WorkloadSpec, contenders: list[Contender]) -> None:
        job = Job("inspect", workload, effort=EFFORTS[self._request.effort])
        try:
            inspection = inspect_workload(self._launcher, job, self._limits(), self._budget.spent.stage)
        except (BaselineError, InputError, InternalError) as error:  # this target cannot run here, but others can
            refused = isinstance(error, InputError)
            reason = f"the original model: {error}" if isinstance(error, BaselineError) else str(error)
            for contender in contenders:
                self._keep(Row(workload, contender.name, state=RowState.FAILED, reason=reason, refused=refused))
            return
        self._survey()
        job = replace(job, task="try", traits=inspection.traits)
        with contextlib.ExitStack() as kept:
            contender_jobs: dict[str, ContenderJob] = {}
            for contender in contenders:
                if self._budget.is_spent:
                    return
                self._listener.start_contender(contender.name)
                cold = self._request.cold and contender.name != EAGER  # eager is the baseline
                own = replace(job, cache_dir=kept.enter_context(own_caches()), cold=cold)
                contender_jobs[contender.name] = ContenderJob("contend", own, contender.name)
                self._keep(self._row(workload, contender, contender_jobs))
            self._resolve_ties(workload, contender_jobs)

    def _survey(self) -> None:
        """Measure the hardware once, after the first target has run, so that a misspelt target fails at once."""
        if not self._is_surveyed:
            self._is_surveyed = True
            spec = WorkloadSpec("peaks", device=self._request.device)  # type: ignore[arg-type]
            survey = HardwareSurvey(Job("inspect", spec))
            peaks = ask_worker(self._launcher, survey, Peaks, self._limits(), self._budget.spent.stage)
            self._benchmark = replace(self._benchmark, peaks=None if isinstance(peaks, Failure) else peaks)

    def _row(self, workload: WorkloadSpec, contender: Contender, contender_jobs: dict[str, ContenderJob]) -> Row:
        """Run one contender with its own caches. A duel also uses the caches of its rival."""
        row, cold_s = Row(workload, contender.name), None
        try:
            if absent := contender.missing(Setting(workload.device, workload.mode)):
                return replace(row, state=RowState.MISSING, reason=absent)
            if contender.name == TORCHWISE:
                row, contender_jobs[TORCHWISE], cold_s = self._decide_plan(row, contender_jobs[TORCHWISE])
        except BudgetError:
            raise
        except Exception as error:  # a plug-in may raise any error, and a search may fail: the row records it
            return replace(row, state=RowState.FAILED, reason=f"{type(error).__name__}: {error}")
        contender_job = contender_jobs[contender.name]
        performance = self._ask(contender_job, Performance)
        if isinstance(performance, Failure) and performance.kind is FailureKind.OUT_OF_BUDGET:
            raise make_budget_error(performance, f"{contender.name} is not timed on {workload.target}")
        if isinstance(performance, Failure):
            return replace(row, state=RowState.FAILED, failure=performance, reason=str(performance))
        if cold_s is not None:  # the trial filled the caches, so this was a warm start
            costs = replace(performance.costs, cold_s=cold_s, warm_s=performance.costs.cold_s)
            row = replace(row, performance=replace(performance, costs=costs))
        else:
            row = replace(row, performance=performance)
            row = self._restart(row, contender_job, keeps_seconds=True) if self._request.warm else row
        return self._with_duel(row, contender_jobs) if contender.name == TORCHWISE else row

    def _resolve_ties(self, workload: WorkloadSpec, contender_jobs: dict[str, ContenderJob]) -> None:
        """Time candidates for the fastest in more processes, within effort and budget."""
        effort, repeatable = EFFORTS[self._request.effort], set(contender_jobs)
        while not self._budget.is_spent:
            scale = scale_of(self._benchmark, workload)
            if row := next_duel(scale, effort, repeatable):
                assert row.rival is not None, "a duel is with a rival"
                self._listener.start_step(f"{TORCHWISE}: {row.plan} against {row.rival} in another process")
                answer = self._duel(contender_jobs, row.rival)
                if isinstance(answer, Failure):
                    repeatable.clear()
                    row = _with_reason(row, f"against {row.rival} in another process: {answer}")
                else:
                    row = replace(row, duel_repeats=(*row.duel_repeats, answer))
            elif row := next_repeat(scale, effort, contender_jobs):
                self._listener.start_step(f"{row.contender} in another process")
                row = self._restart(row, contender_jobs[row.contender])
            else:
                return
            self._put(row)
            self._listener.update_row(self._benchmark, row)

    def _decide_plan(self, row: Row, contender_job: ContenderJob) -> tuple[Row, ContenderJob, float | None]:
        """Search, or choose from the request's plans, and return the seconds of the plan's first call in its trial.

        The trial started with empty caches. The contender's job reuses them, so that nothing compiles twice. The
        seconds are None if there are no caches to reuse.

        The search has its own store, so that earlier results do not shorten it.

        Raises:
            BudgetError: the budget of the benchmark ended the search.
        """
        from torchwise.store import open_storage

        request = self._request.study(row.workload)
        with (
            tempfile.TemporaryDirectory(prefix="torchwise-bench-") as folder,
            open_storage(f"{folder}/s.db") as storage,
            Caches() as caches,
        ):
            listener = _SearchListener(self._listener, self._budget.spent.stage)
            study = run_study(request, storage, self._launcher, listener, caches=caches)
            if self._budget.is_spent:  # a shortened search would not represent Torchwise
                raise BudgetError(f"{self._budget}, and the search for {row.workload.target} is not finished")
            assert study.decision is not None
            plan = study.decision.plan
            has_caches = _copy_caches(caches.list_folders(plan), contender_job.job.cache_dir)
        tried = [f"{trial.plan}: {why(trial, study)}" for trial in study.trials]
        search_s = None if self._request.plans else study.seconds
        self._listener.start_step(f"{TORCHWISE}: {plan}, with its checks")
        row = replace(row, plan=plan, precision=plan.precision, search_s=search_s, searched=(*tried, *study.excluded))
        contender_job = replace(contender_job, decision=study.decision.to_json())
        return row, contender_job, study.decision.cold_s if has_caches else None

    def _restart(self, row: Row, contender_job: ContenderJob, *, keeps_seconds: bool = False) -> Row:
        """Start the contender again from warm caches, and time it against eager.

        `keeps_seconds` keeps the seconds of this start.
        """
        if row.performance is None:
            return row
        found, performance = self._ask(replace(contender_job, step="warm"), Restart), row.performance
        if isinstance(found, Failure) and found.kind is FailureKind.OUT_OF_BUDGET:
            return row
        if isinstance(found, Failure):
            which = "from warm caches" if keeps_seconds else "in another process"
            return replace(row, state=RowState.FAILED, failure=found, reason=f"{which}: {found}")
        if keeps_seconds:
            performance = replace(performance, costs=replace(performance.costs, warm_s=found.warm_s))
        return replace(row, performance=replace(performance, repeats=(*performance.repeats, found.measurement)))

    def _with_duel(self, row: Row, contender_jobs: Mapping[str, ContenderJob]) -> Row:
        """Time Torchwise against the fastest alternative again, both in one process.

        If two alternatives may be the fastest, time it against each. The row keeps the worse result.
        """
        if not row.is_right:
            return row
        for rival in rivals_of(self._benchmark.select_rows(row.workload), row):
            self._listener.start_step(f"{TORCHWISE}: {row.plan} against {rival.contender}")
            answer = self._duel(contender_jobs, rival.contender)
            if isinstance(answer, Failure):
                row = _with_reason(row, f"against {rival.contender}: {answer}")
                row = replace(row, rival=row.rival or rival.contender)
            elif row.duel is None or answer.speedup.mid < row.duel.speedup.mid:
                row = replace(row, rival=rival.contender, duel=answer)
        return row

    def _duel(self, contender_jobs: Mapping[str, ContenderJob], rival: str) -> Measurement | Failure:
        """Time both in one process. They reuse their compiled code, whose kernels were timed before."""
        contender_job = contender_jobs[TORCHWISE]
        with own_caches(
            contender_jobs[name].job.cache_dir for name in (TORCHWISE, rival) if name in contender_jobs
        ) as folder:
            job = replace(contender_job.job, cache_dir=folder)
            return self._ask(replace(contender_job, step="duel", rival=rival, job=job), Measurement)

    def _ask(self, contender_job: ContenderJob, kind: type[T]) -> T | Failure:
        """Have a worker do a job. If it fails while timing cold caches, it is done again without that."""
        answer = ask_worker(self._launcher, contender_job, kind, self._limits(), self._budget.spent.stage)
        if isinstance(answer, Failure) and answer.stage == WorkerStage.MEASURE_COLD:
            job = replace(contender_job.job, cold=False)
            plain = replace(contender_job, job=job)
            answer = ask_worker(self._launcher, plain, kind, self._limits(), self._budget.spent.stage)
        return answer

    def _limits(self) -> Limits:
        return Limits.from_free_memory(self._request.limit_s)

    def _keep(self, row: Row) -> None:
        others = (other for other in self._benchmark.rows if other.key != row.key)  # a refused row may be repeated
        self._benchmark = replace(self._benchmark, rows=(*others, row))
        self._listener.finish_row(self._benchmark, row)

    def _put(self, row: Row) -> None:
        """Replace a row by its new form."""
        rows = tuple(row if other.key == row.key else other for other in self._benchmark.rows)
        self._benchmark = replace(self._benchmark, rows=rows)


def _with_reason(row: Row, reason: str) -> Row:
    return replace(row, reason="; ".join(filter(None, [row.reason, reason])))


def _copy_caches(folders: Sequence[str], cache_dir: str) -> bool:
    """Copy the folders' files to `cache_dir`, all or nothing, and return whether there are any."""
    try:
        for folder in folders:
            shutil.copytree(folder, cache_dir, dirs_exist_ok=True)
    except OSError:  # such as on a full disk: the plan then compiles again
        shutil.rmtree(cache_dir, ignore_errors=True)
        Path(cache_dir).mkdir(exist_ok=True)
        return False
    return bool(folders)


def next_duel(scale: Scale, effort: EffortProfile, repeatable: Collection[str]) -> Row | None:
    """Return Torchwise's row if it needs another duel with its rival in a new process, or None."""
    for row in (one.row for one in scale.rows):
        ratio, count = row.speed_over_rival, len(row.duels)
        if ratio is None or row.is_its_rival or not row.is_right or row.contender not in repeatable:
            continue
        if count < effort.processes and not is_plain(ratio, _distance(ratio), count, effort.half_width):
            return row
    return None


def next_repeat(scale: Scale, effort: EffortProfile, repeatable: Collection[str]) -> Row | None:
    """Return the row to time against eager in another process, or None once the fastest is known."""
    right = [one for one in scale.rows if one.row.is_right and not _is_eager(one.row)]
    for level in dict.fromkeys(one.row.level for one in right):  # levels are never compared
        same_level = [one for one in right if one.row.level == level]
        leader, *others = sorted(same_level, key=lambda one: -one.speedup.mid)
        close = [one for one in others if may_be_faster(one, leader)][: effort.duels]
        if not close and is_plain(leader.speedup, _distance(leader.speedup), _processes(leader), effort.half_width):
            continue
        waiting = [one for one in (leader, *close) if one.row.contender in repeatable and _may_have_more(one, effort)]
        if waiting:
            return min(waiting, key=_processes).row
    return None


def _is_eager(row: Row) -> bool:
    """Return whether a row runs eager, as its contender or by its decision."""
    return row.contender == EAGER or (row.plan is not None and row.plan.is_eager)


def _may_have_more(one: ScaledRow, effort: EffortProfile) -> bool:
    ratio = one.row.speedup
    is_narrow = ratio is not None and ratio.half_width <= effort.half_width and _processes(one) > 1
    return _processes(one) < effort.processes and not is_narrow


def _processes(one: ScaledRow) -> int:
    return len(one.row.performance.processes) if one.row.performance else 0


def _distance(ratio: Interval) -> float:
    """Return the log-distance of a ratio from 1, in half-widths of its interval."""
    width = math.log(ratio.high / ratio.low) / 2
    return abs(math.log(ratio.mid)) / width if width else math.inf
