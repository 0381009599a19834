"""Find a batch size: the one that a plan runs best at, and batch size and plan together, also under a latency limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchwise.environment import Environment
from torchwise.errors import BaselineError, BudgetError, InputError, UnsupportedError
from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import BatchDim
from torchwise.records import Decision, Failure, FailureKind, Study, Trial
from torchwise.records.format import ratio, seconds
from torchwise.records.listener import Listener
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.store import Storage, StudyKey
from torchwise.study.history import History
from torchwise.study.one_plan import PlanStudy
from torchwise.study.request import Request
from torchwise.trial import DerivedJob, Job, Launcher
from torchwise.trial.error_origin import make_budget_error

REFINEMENTS = 2
"""Sizes tried between the largest that fitted and the smallest that did not, each halfway."""
MAX_BATCH = 65_536
FLAT, MIN_GAIN = 2, 1.05
"""Without a limit, the doubling ends after so many sizes in a row that gain less than this factor in throughput."""
ALIKE = 1.02
"""Sizes whose throughput differs by less than this factor are as good: the smallest of them needs least memory."""
MAX_ROUNDS = 3
"""Searches for a plan at one batch size. Each is followed by a search for the batch size of its plan."""


@dataclass(frozen=True, slots=True)
class SampleCheck(DerivedJob):
    """Has a worker verify that the samples of a batch do not depend on each other, and tell whether they are random."""

    FUNCTION = "torchwise.trial.sample_check:check_samples"
    job: Job


RunStudy = Callable[[Request], Study]


def fit_sizes(
    study: PlanStudy,
    start: int,
    largest: int,
    *,
    tell: Callable[[str], None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
    ends_flat: bool = False,
) -> BatchFit:
    """Try the plan of a study at doubling batch sizes until one fails or passes a limit, and then between.

    A size that may pass the limit of latency because of other load does not end the doubling, and is not chosen.

    Args:
        start: the smallest size to try.
        largest: no larger one is tried.
        tell: called with each size and its result.
        is_over: whether the time for sizes is spent, so that no further one is tried.
        ends_flat: whether the doubling also ends where throughput hardly grows any more. A size with less throughput
            than a smaller one is tried once more.
    """
    tried: dict[int, SizeTried] = {}
    unsure: set[int] = set()

    def is_good(size: int) -> bool:
        most = max((one.samples_per_s or 0.0 for one in tried.values()), default=0.0)
        tried[size], is_sure = _try_size(study, size)
        if ends_flat and 0 < (tried[size].samples_per_s or 0.0) * MIN_GAIN < most and not is_over():
            again, _ = _try_size(study, size)  # other load only ever adds time
            tried[size] = max(tried[size], again, key=lambda one: one.samples_per_s or 0.0)
        if not is_sure:
            unsure.add(size)
        tell(f"batch {size}: {tried[size]}")
        return not tried[size].problem

    size, good, bad = start, 0, 0
    while size <= largest and not bad and not (tried and is_over()) and not (ends_flat and _is_flat(tried)):
        if is_good(size):
            good = size
        elif size not in unsure:
            bad = size
        size *= 2
    for _ in range(REFINEMENTS if good and bad else 0):
        between = (good + bad) // 2
        if between in tried or is_over():
            break
        good, bad = (between, bad) if is_good(between) else (good, between)
    spec = study.job.workload
    found = tuple(tried[size] for size in sorted(tried))
    return BatchFit(spec.target, study.job.plan, found, spec.memory_limit, spec.latency_limit)


def _is_flat(tried: Mapping[int, SizeTried]) -> bool:
    """Whether the last sizes have hardly more throughput than those before. A single one may be an outlier."""
    rates = [one.samples_per_s or 0.0 for _, one in sorted(tried.items())]
    return len(rates) > FLAT and max(rates[-FLAT:]) < MIN_GAIN * max(rates[:-FLAT])


def _try_size(study: PlanStudy, size: int) -> tuple[SizeTried, bool]:
    """Try the plan at a batch size, and return whether its problem is sure.

    A size that is too slow is tried once more, as other load only ever adds time.
    """
    found, least_s = _judge_size(study, size, study.try_plan(batch=BatchDim(0, size)))
    limit_s = study.job.workload.call_limit_s
    if not found.samples_per_s or size / found.samples_per_s <= limit_s:
        return found, True
    again, again_s = _judge_size(study, size, study.try_plan(batch=BatchDim(0, size)))
    best = max(found, again, key=lambda one: one.samples_per_s or 0.0)
    return best, not best.problem or min(least_s, again_s) > limit_s


def _judge_size(study: PlanStudy, size: int, trial: Trial) -> tuple[SizeTried, float]:
    """Return the result of a batch size, and the seconds that a call takes at least."""
    spec, peak = study.job.workload, trial.costs.peak_memory if trial.costs else None
    if not trial.is_verified or trial.measurement is None:
        return SizeTried(size, peak_memory=peak, problem=trial.reason), math.inf
    call, problem = trial.measurement.candidate_time, ""
    if spec.memory_limit is not None and (peak is None or peak > spec.memory_limit):
        shown = "an unknown amount" if peak is None else f"{peak / 2**20:.0f} MiB"
        problem = f"takes {shown}, above the limit of {spec.memory_limit / 2**20:.0f} MiB"
    elif call.mid > spec.call_limit_s:
        problem = f"a call takes {seconds(call.mid)}, above the {seconds(spec.call_limit_s)} that the limit leaves"
    return SizeTried(size, size / call.mid, peak, problem), call.low


def search_batch(
    request: Request, storage: Storage, launcher: Launcher, listener: Listener, here: Environment, run: RunStudy
) -> Study:
    """Find batch size and plan together, and return the study at the chosen size.

    The size is found under eager, the plan at that size, and then the size under that plan, until neither changes.

    Args:
        run: runs the study of a request at its batch size.

    Raises:
        InputError: the inputs have no batch, as their first dimension is not common, or samples depend on each other.
    """
    if not request.fresh and (stored := _find_decided(request, storage, here)):
        study = run(replace(request, workload=stored.workload, identity=None))
        if study.decision and study.decision.identity == stored.identity:
            return study
    return _BatchSearch(request, storage, launcher, listener, run).find()


def _find_decided(request: Request, storage: Storage, here: Environment) -> Decision | None:
    """Return the latest decision for the workload on this machine, if it is of the same request and conclusive.

    Those before it may be of an earlier round of its search, at another batch size.
    """
    for decision in storage.decisions(target=request.workload.target):
        is_same = replace(decision.workload, batch=None) == request.workload and decision.workload.batch is not None
        if is_same and request.structure in (None, decision.structure) and not decision.list_changes(here):
            is_alike = _was_asked_alike(decision, request, storage, here)
            return decision if is_alike and not decision.is_inconclusive else None
    return None


def _was_asked_alike(decision: Decision, request: Request, storage: Storage, here: Environment) -> bool:
    """Return whether a decision comes from a search with the numerics, the effort and the plans of a request."""
    key = StudyKey.from_workload(decision.identity, here, decision.workload, request.allow)
    study = storage.find_study(key, request.workload.target)
    if study is None or study.effort != request.effort:
        return False
    if request.plans is None:
        return bool(study.excluded)  # a search among named plans excludes none
    tried = {EAGER, *(trial.plan for trial in study.trials)}
    return tried.issuperset(request.plans) and decision.plan in (EAGER, *request.plans)


@dataclass
class _BatchSearch:
    request: Request
    storage: Storage
    launcher: Launcher
    listener: Listener
    run: RunStudy

    def find(self) -> Study:
        self._budget = self.request.start_budget(self.listener.stage)
        self.launcher = self._budget.limit(self.launcher)
        self.listener.note("verifying that samples of a batch do not depend on each other")
        plan, size = EAGER, self._fit(EAGER, 1, self._check_samples())
        studies: dict[int, Study] = {}
        while size not in studies and len(studies) < MAX_ROUNDS:
            try:
                studies[size] = self._run(size)
                decided = studies[size].decision
                if (decided.plan if decided else EAGER) == plan or self._budget.is_spent:
                    break
                plan = decided.plan if decided else EAGER
                size = self._fit(plan, size, studies[size].inspection.traits)
            except (BudgetError, BaselineError, InputError) as error:
                if not studies:
                    raise
                self.listener.note(f"the search ends with the batch sizes so far: {error}")
                break
        best, latest = max(studies.values(), key=_samples_per_s), [*studies.values()][-1]
        return best if best is latest else self._decide_again(best)

    def _check_samples(self) -> frozenset[Trait]:
        """Verify that samples do not depend on each other, and return the traits that this shows."""
        job = self.request.make_job("try")
        study = PlanStudy(job, self.launcher, self.request.inspection_s, self._budget.spent.stage)
        found = study.ask(SampleCheck(job), bool)
        if isinstance(found, Failure) and found.kind is FailureKind.OUT_OF_BUDGET:
            raise make_budget_error(found, "no batch size is tried")
        if isinstance(found, Failure):
            raise UnsupportedError(f"whether samples of a batch depend on each other is not known: the check {found}")
        return frozenset({Trait.STOCHASTIC} if found else ())

    def _run(self, size: int) -> Study:
        """Search for a plan at a batch size. Without a budget, the time of the effort is for plans alone."""
        self.listener.note(f"searching for a plan at batch {size}")
        workload = replace(self.request.workload, batch=BatchDim(0, size))
        # The budget goes on under the user's own number. A wait that does not count is not counted there either.
        begun = None if self.request.budget_s is None else time.monotonic() - self._budget.now_s
        return self.run(replace(self.request, workload=workload, begun=begun, identity=None))

    def _decide_again(self, study: Study) -> Study:
        """Store a decision once more, so that it is the latest of the target."""
        excluded, target = study.excluded, study.workload.target
        self.storage.store_outcome(study.id, state=study.state, decision=study.decision, excluded=excluded, seconds=0.0)
        return self.storage.get_study(study.id, target)

    def _fit(self, plan: Plan, start: int, traits: frozenset[Trait]) -> int:
        """Return the batch size of most samples per second from `start` on, or `start` if none keeps the limits."""
        self.listener.note(f"searching for a batch size under {plan}")
        job = replace(self.request.make_job("try"), plan=plan, effort=EFFORTS["quick"], traits=traits)
        # A size is chosen by speed and memory. The search at that size refuses plans without a required property.
        job = replace(job, workload=replace(job.workload, require=()))
        compile_s = self.request.make_limits(1).compile_s
        study = PlanStudy(job, self.launcher, self.request.trial_s, self._budget.spent.stage, compile_s)
        until_s = self._budget.now_s + min(self._budget.left_s, self.request.search_s) / 2  # the rest is for plans
        found = fit_sizes(
            study,
            start,
            MAX_BATCH,
            tell=self.listener.note,
            is_over=lambda: self._budget.now_s > until_s,
            ends_flat=job.workload.latency_limit is None,
        )
        first = found.tried[0]
        if plan.is_eager and first.samples_per_s is None and self._budget.is_spent:
            raise BudgetError(f"{self._budget}, and no batch size is tried. Give a larger budget")
        if plan.is_eager and first.samples_per_s is None:
            raise InputError(f"a batch size is wanted, but batch {first.size} fails: {first.problem}")
        best = _choose_size(found)
        if best is not None and len(found.tried) > 1:
            gain = best.samples_per_s / first.samples_per_s if best.samples_per_s and first.samples_per_s else None
            self.listener.note(f"batch {best.size} is best: {best}, {ratio(gain)} that of batch {first.size}")
        return start if best is None else best.size


def _choose_size(found: BatchFit) -> SizeTried | None:
    """Return the size of most samples per second, or without a limit of latency the smallest that is as good."""
    fitting = [one for one in found.tried if not one.problem and one.samples_per_s]
    most = max((one.samples_per_s or 0.0 for one in fitting), default=0.0)
    least = most if found.latency_limit is not None else most / ALIKE
    return next((one for one in fitting if (one.samples_per_s or 0.0) >= least), None)


def _samples_per_s(study: Study) -> float:
    """Return the samples per second of the decided plan, or 0 if it passes a limit."""
    workload = study.workload
    assert workload.batch is not None
    history = History(workload, study.inspection, study.trials)
    plan = study.decision.plan if study.decision else EAGER
    trial = history.find_trial(plan)
    fits = history.eager_fits if trial is None else history.fits(trial)
    return workload.batch.size / history.seconds_of(plan) if fits else 0.0
