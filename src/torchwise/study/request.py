"""One request to tune: the workload, the limits, the budget and the source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchwise.command_start import budget_start
from torchwise.environment import Environment
from torchwise.errors import InputError, UnsupportedError, is_count, is_positive
from torchwise.parsing import to_bytes, to_seconds
from torchwise.plan import Numerics, Plan, Trait, check_is_plan
from torchwise.plan.batch_choice import check_batch
from torchwise.plan.effort import EFFORTS, check_effort
from torchwise.plan.requirements import read_properties
from torchwise.plan.space import numerics_of
from torchwise.plan.workload_spec import (
    DISTRIBUTION,
    TuneOptions,
    WorkloadSpec,
    check_iterations,
    check_timeout,
    choose_tolerance,
)
from torchwise.records import Inspection, Outcome, StudyState
from torchwise.records import format as show
from torchwise.store import Storage, StudyKey
from torchwise.trial import Budget, Job, Limits, ProcessSettings, Stopwatch
from torchwise.trial.job import Task
from torchwise.trial.launcher import OnStage
from torchwise.trial.loading_reads import recall_identity

INSPECTIONS = 3
"""Multiple of the effort's trial limit that the inspection may take, as the plain model's speed is not known yet."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to tune.

    Attributes:
        budget_s: seconds for everything: profiling, waiting (but see `wait`) and trials. None stands for the seconds of
            search after which no further trial starts, those of the effort, and for no end if plans are named.
        plans: try exactly these instead of searching, or None to search. All named plans are tried, as their user wants
            to know their speed, and each may take as long as with effort "thorough".
        limit_s: seconds after which one trial is ended, and a duel of two plans after twice as many. None stands for
            the effort's own, or for those of effort "thorough" if plans are named.
        structure: of a live Python model, found where its source code is, or None for a target.
        source: file with a live Python model for the workers, or None to load the target.
        settings: PyTorch's settings in the user's process, or None for its defaults.
        cold: whether the chosen plan is timed with cold processor caches as well. That decides nothing.
        identity: of a live Python model and its inputs, or None for a target.
        wait: whether seconds in which another process has the device are no part of `budget_s`.
        compile_timeout_s: seconds that one candidate may compile, besides its `limit_s`, or None for no such limit.
        iterations: how many times a candidate and eager are timed in each process, or None until that is enough.
        fullgraph: whether a model that PyTorch cannot capture as one graph is refused before the search.
        workers: how many plans are tried at once at the most, or None for as many as cores and memory let (`lanes.py`).
        begun: the time by `time.monotonic` from which `budget_s` counts, or None for the start of the study.
        finds_batch: whether the batch size of most samples per second is found together with the plan. With a limit of
            latency, it is found anyway.
        successor: returns the plan that another search within this budget is to try once this one has found a plan, or
            None for no other search. The seconds that it needs are kept for it.
    """

    workload: WorkloadSpec
    allow: Numerics = Numerics.SAME_PRECISION
    effort: str = "standard"
    budget_s: float | None = None
    plans: tuple[Plan, ...] | None = None
    source: str | None = None
    settings: ProcessSettings | None = None
    fresh: bool = False
    structure: str | None = None
    structure_details: str = ""
    limit_s: float | None = None
    cold: bool = False
    identity: str | None = None
    wait: bool = False
    compile_timeout_s: float | None = None
    iterations: int | None = None
    fullgraph: bool = False
    workers: int | None = 1
    begun: float | None = field(default=None, compare=False)
    finds_batch: bool = False
    successor: Callable[[Plan], Plan] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_effort(self.effort)
        if self.budget_s is not None and not is_positive(self.budget_s):
            raise InputError(f"budget is {self.budget_s!r} s, but must be above 0")
        if self.allow is Numerics.QUANTIZED and self.workload.mode == "training":
            raise InputError(
                "allow is 'quantized', but mode is 'training', and numbers of fewer bits are for inference alone: a "
                "rounded weight has no gradient. Use --allow lower-precision"
            )
        if not self.workload.permits_change and (chosen := choose_tolerance(self.allow, self.workload.mode)):
            object.__setattr__(self, "workload", replace(self.workload, tolerance=chosen))
        check_timeout(self.compile_timeout_s)
        check_iterations(self.iterations)
        check_workers(self.workers)
        if self.cold:
            check_times_calls(self.workload.objective)
        for plan in self.plans or ():
            check_is_plan(plan)
            if not self.allow.allows(level := numerics_of(plan)):  # which refuses unknown choices, too
                _refuse_misspelt_options(plan)
                raise InputError(f"plan {plan} is {level}, but only up to {self.allow} is allowed: --allow {level}")

    @classmethod
    def from_options(cls, options: TuneOptions, target: str, device: str, seed: int = 0) -> Request:
        """Return the request to tune a target with a user's options.

        Args:
            target: the target, or the name of a live model.
            seed: seed of the weights and inputs that a target's factory draws.

        Raises:
            InputError: an option has no permitted value.
        """
        begun = budget_start()
        plans: object = options.plans
        if isinstance(plans, (Plan, str)):
            kind = type(plans).__name__
            raise InputError(f"plans is a {kind}, but must be a list of plans, such as [Plan(backend='inductor')]")
        workload = WorkloadSpec(
            target,
            device=device,  # type: ignore[arg-type]
            mode=options.mode,  # type: ignore[arg-type]
            objective=options.objective,  # type: ignore[arg-type]
            calls=options.calls,  # type: ignore[arg-type]  # which becomes a whole number
            restarts=options.restarts,
            seed=seed,
            memory_limit=None if options.memory_limit is None else to_bytes(options.memory_limit, "memory limit"),
            sizes=options.sizes,  # type: ignore[arg-type]
            tolerance=options.tolerance,
            metric=options.metric,
            require=read_properties(options.require),
            latency_limit=None if options.latency_limit is None else to_seconds(options.latency_limit, "latency limit"),
        )
        check_batch(options.batch, workload)
        return cls(
            workload,
            Numerics.of(options.allow),
            options.effort,
            options.budget,
            None if options.plans is None else tuple(options.plans),
            fresh=options.fresh,
            cold=options.cold,
            wait=options.wait,
            compile_timeout_s=options.compile_timeout,
            iterations=options.iterations,
            fullgraph=options.fullgraph,
            finds_batch=options.batch == "best",
            workers=options.workers,
            begun=begun,
        )

    def start_budget(self, on_stage: OnStage) -> Budget:
        """Return the budget of the whole command, which is unlimited if none is given."""
        spent = Stopwatch(on_stage, self.begun)
        seconds = math.inf if self.budget_s is None else self.budget_s
        return Budget(seconds, spent, can_wait=self.wait or self.budget_s is None, wait_option="--wait, or wait=True,")

    def make_job(self, task: Task) -> Job:
        """Return the order for a worker to do a task on the workload."""
        return Job(
            task,
            self.workload,
            source=self.source,
            effort=replace(EFFORTS[self.effort], rounds=self.iterations),
            settings=self.settings,
            structure=self.structure,
            structure_details=self.structure_details,
        )

    @property
    def search_s(self) -> float:
        """Seconds of search after which no further trial starts."""
        if self.budget_s is not None:
            return self.budget_s
        return EFFORTS[self.effort].search_s if self.plans is None else math.inf

    def name_budget(self, budget: Budget) -> str:
        """Say that the time of the search is spent: the user's budget, or that of the effort."""
        if self.budget_s is None:
            return f"the {show.tick(self.search_s)} of effort {self.effort} are spent"
        return str(budget)

    @property
    def limits_all(self) -> bool:
        """Whether the user's budget is the only limit of a plan for which no other one waits."""
        return self.budget_s is not None and self.limit_s is None

    @property
    def starts_all_again(self) -> bool:
        """Whether every plan that compiles and beats eager is started twice: it was named, or its restart may count."""
        return self.plans is not None or self.workload.restarts > 1 or self.workload.objective == "memory"

    @property
    def trial_s(self) -> float:
        """Seconds after which one trial is ended, with those that it may compile."""
        own = EFFORTS[self.effort if self.plans is None else "thorough"].trial_s
        return (own if self.limit_s is None else self.limit_s) + (self.compile_timeout_s or 0.0)

    def make_limits(self, seconds: float, candidates: int = 1) -> Limits:
        """Return the limits of a worker that may take some seconds, and compiles that many candidates in a row."""
        compile_s = math.inf if self.compile_timeout_s is None else candidates * self.compile_timeout_s
        return replace(Limits.from_free_memory(seconds), compile_s=compile_s)

    @property
    def inspection_s(self) -> float:
        """Seconds after which the inspection of the plain model is ended."""
        return INSPECTIONS * EFFORTS[self.effort].trial_s


def check_requirements(inspection: Inspection) -> None:
    """Refuse a required property that cannot be judged on the model itself, so that no plan could be shown to have it.

    Raises:
        InputError: naming the property and the reason.
    """
    for check in inspection.properties:
        if check.outcome is Outcome.NOT_COMPARABLE:
            raise InputError(
                f"require is {check.name}, but whether the model itself has it cannot be told: {check.detail}. Leave "
                f"--require {check.name} out, or give other inputs"
            )


class NotRandomError(InputError):
    """Distributions of outputs are to be compared, but the model draws no random numbers."""


def check_metric(spec: WorkloadSpec, inspection: Inspection) -> None:
    """Refuse to compare distributions of outputs for a model whose outputs do not vary.

    Raises:
        NotRandomError: saying what to give in its place.
    """
    if spec.metric == DISTRIBUTION and Trait.STOCHASTIC not in inspection.traits:
        raise NotRandomError(
            f"metric is '{DISTRIBUTION}', but the model draws no random numbers, so that its outputs do not vary: give "
            "--tolerance (tolerance), such as 0.01, for their error, or with it --metric (metric) file.py:function"
        )


def check_workers(number: object) -> None:
    """Refuse a number of workers that is no whole number of at least 1, or None."""
    if number is not None and not is_count(number):
        raise InputError(
            f"workers is {number!r:.40}, but must be a whole number of at least 1, or None for as many as fit"
        )


def check_times_calls(objective: str) -> None:
    """Refuse cold caches with an objective for which no call is timed by itself."""
    if objective != "latency":
        raise InputError(
            f"cold caches are asked for with objective {objective!r}, but are only for latency: they are emptied "
            "before each call, and each is timed by itself. Leave --cold (cold=True) out, or ask for latency"
        )


def _refuse_misspelt_options(plan: Plan) -> None:
    """Refuse a plan with an unknown option: to approve it would only lead to a later refusal."""
    if plan.backend != "inductor" or not plan.options:
        return
    from torchwise.compile.backends.inductor import check_options  # loads torch, which takes seconds

    try:
        check_options(name for name, _ in plan.options)
    except UnsupportedError as error:
        raise InputError(f"plan {plan}: {error}") from None


def recall_inspection(request: Request, storage: Storage, here: Environment, reads: Path | None) -> Inspection | None:
    """Return the stored inspection of the same model and inputs here, if its study has a clear decision for any target.

    Otherwise the model is profiled again: other programs may have disturbed the measurements.
    """
    identity = request.identity or (recall_identity(reads) if reads else None)
    if identity is None or request.fresh:
        return None
    stored = storage.find_study(StudyKey.from_workload(identity, here, request.workload, request.allow))
    decision = stored.decision if stored and stored.state is StudyState.DECIDED else None
    return stored.inspection if stored and decision and not decision.is_inconclusive else None
