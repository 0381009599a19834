"""A trial of one candidate plan: its outcome, and what the plan costs over its life, from intervals rather than points.

    cost = cold compile + (restarts - 1) * warm compile + calls * seconds per call

The first process start pays the cold compile, and every later one the warm compile. Seconds per call are eager's
divided by the paired speed-up. Candidates were timed in different processes at different times, so only their ratio to
eager in the same minute compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from torchwise.former_names import OpenEnum
from torchwise.plan import Plan
from torchwise.records.answer import Answer
from torchwise.records.measurement import INTERFERENCE_FACTOR, Measurement
from torchwise.records.processes import cold_speedup_across, is_faster_across, probability_below, speedup_across
from torchwise.records.shown import Shown
from torchwise.records.statistics import Amount, Count, Interval, Seconds
from torchwise.records.verdict import Outcome, Verdict


class TrialState(StrEnum):
    """State of a trial. COMPLETE says that it ran, not that it passed: the verdict says that."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAIL = "fail"

    @property
    def is_finished(self) -> bool:
        """Whether the state is final."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class FailureKind(StrEnum):
    """The ways in which a worker ends without a result."""

    TIMED_OUT = "timed out"
    DIED = "died"
    RAISED = "raised"
    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    INTERFERED = "was held up"
    OUT_OF_BUDGET = "was ended by the budget"
    """The worker had no more time. That says nothing about its plan."""


NOTHING_COMPILED = "nothing was compiled: "
"""Beginning of the message of a trial whose graph breaks so early that nothing is left to compile."""
WAITING = "wait for another Torchwise process"
"""Stage that a listener receives while the worker waits for the device (`torchwise.measure.device_lock`)."""


class WorkerStage(OpenEnum):
    """The stages of workers that Torchwise acts on. Other tasks have further stages of their own."""

    START = "start"
    LOAD = "load"
    RUN_EAGER = "run eager"
    INSPECT = "inspect the model"
    EAGER = "eager"
    CAPTURE = "capture"
    COMPILE = "compile"
    VERIFY = "verify"
    MEASURE = "measure"
    MEASURE_COLD = "measure with cold caches"
    """Times cold processor caches. A failure in it fails neither the plan nor the row."""
    WARM_COMPILE = "warm compile"
    PROFILE = "profile"

    @property
    def is_compiling(self) -> bool:
        """Whether a worker compiles in this stage, from cold or warm caches, or ahead of time."""
        return "compile" in self

    @classmethod
    def former_values(cls) -> Mapping[str, str]:
        """Return the values that stages had in earlier versions, with the values that they have now."""
        return {"look": "inspect the model"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker ended without a result.

    Attributes:
        stage: the worker's stage then.
        message: the exception, the signal's name, or the limit that was exceeded.
        traceback: of the exception, or of the worker's current code when its time was up, if there is one.
        about: the parts of the plan that are the reason, as fields and their values, whatever else the plan has. Empty
            says that the whole plan may be the reason.
        no_effect: the same for one part that changed nothing, in records of earlier versions.
    """

    kind: FailureKind
    stage: WorkerStage
    message: str
    traceback: str = ""
    about: tuple[tuple[str, Any], ...] = ()
    no_effect: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        """Keep the parts in one form: JSON has lists in place of tuples."""
        parts = self.about or ((self.no_effect,) if self.no_effect else ())
        object.__setattr__(self, "about", tuple((field, _with_tuples(value)) for field, value in parts))

    def __str__(self) -> str:
        """Return such as "died in compile: SIGSEGV"."""
        return f"{self.kind} in {self.stage}: {self.message}"


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a plan besides its calls.

    Attributes:
        cold_s: seconds that the first calls took beyond steady calls, with empty compile caches.
        warm_s: the same in a new process with the caches that the cold run left, or None if not measured.
        peak_memory: bytes at the peak of one call above those held before it. On a GPU it includes the plan's memory
            between calls (copies of weights, pools of captured graphs). None if not measurable.
        baseline_peak_memory: bytes at the peak of one call of eager above those held before it.
        cache_bytes: size of the compile caches that the plan left.
    """

    cold_s: Seconds
    warm_s: Seconds | None = None
    peak_memory: Count | None = None
    baseline_peak_memory: Count | None = None
    cache_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Duel:
    """A plan against a rival of similar speed: both in one process, timed in alternation.

    Attributes:
        rival: the leader at that time.
        measurement: of the plan, with the rival in eager's place, or None if the duel did not finish.
        seconds: wall time of the duel, without waiting for other processes that had the device.
    """

    rival: Plan
    measurement: Measurement | None = None
    failure: Failure | None = None
    seconds: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Trial(Shown):
    """One candidate plan with its results.

    Attributes:
        number: position in the study, from 0.
        reason: why it was proposed, and later why it ended as it did, in words.
        failure: set for FAIL when the worker ended without a result.
        measurement: set once it was timed.
        verdict: set once it was verified.
        costs: set once it was compiled.
        seconds: wall time of the trial, with the worker's start, without waiting for other processes that had the
            device.
        started_at: seconds since the epoch.
        duel: with a rival of similar speed, or None if there was no need for one.
        repeats: measurements of the plan in further fresh processes.
        graph_break: where and why the graph of the plan breaks first, if that may be why it is not faster, or "".
        instead: a rewrite whose change the user's limit refuses, and the one with fewer parts that passes it, or None.
        digest: of the answers' bits, if those of every other process must be equal, or "".
        share: of the model's operators that the backend takes, and why not more, or "" if it takes all.
    """

    number: Count
    plan: Plan
    state: TrialState = TrialState.WAITING
    reason: str = ""
    failure: Failure | None = None
    measurement: Measurement | None = None
    verdict: Verdict | None = None
    costs: Costs | None = None
    seconds: Seconds = 0.0
    started_at: Amount = 0.0
    duel: Duel | None = None
    repeats: tuple[Measurement, ...] = ()
    graph_break: str = ""
    instead: tuple[str, str] | None = None
    digest: str = ""
    share: str = ""

    def __repr__(self) -> str:
        return f"<Trial {self.number} of {self.plan}: {self.reason or self.state}>"

    @property
    def processes(self) -> tuple[Measurement, ...]:
        """The measurements of the plan, one for each process."""
        return (self.measurement, *self.repeats) if self.measurement and self.measurement.candidate_s else ()

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the plan's, which all judgements of the plan use, or None if nothing was timed."""
        return speedup_across(self.processes) if self.processes else None

    @property
    def cold_speedups(self) -> tuple[Interval, ...]:
        """The speed-up with cold processor caches, one for each process that timed it."""
        return tuple(cold for process in self.processes if (cold := process.cold_speedup) is not None)

    @property
    def cold_speedup(self) -> Interval | None:
        """The cold speed-up over these processes, or None if none timed it. It is shown, and decides nothing."""
        return cold_speedup_across(self.processes)

    @property
    def is_faster(self) -> Answer | None:
        """Whether the plan is faster than eager, or None if nothing was timed."""
        return is_faster_across(self.processes) if self.processes else None

    @property
    def is_timed(self) -> bool:
        """Whether it was timed, and so gives right answers. Pruned trials count, and later failures do not."""
        return self.measurement is not None and self.costs is not None and self.state is not TrialState.FAIL

    @property
    def is_verified(self) -> bool:
        """Whether it ran, was timed, and every check passed. The decision can only be for such a trial."""
        return (
            self.state is TrialState.COMPLETE
            and self.measurement is not None
            and self.costs is not None
            and self.verdict is not None
            and self.verdict.outcome is Outcome.PASS
        )

    @property
    def changes_too_much(self) -> bool:
        """Whether its plan puts something in place of the model's own that changes it by more than the user allows."""
        return self.verdict is not None and self.verdict.is_change_refused

    @property
    def is_promising(self) -> bool:
        """Whether it is verified, and surely faster than eager in its own process: it may be worth more processes."""
        return self.is_verified and self.measurement is not None and self.measurement.speedup.low > 1


def with_repeat(trial: Trial, found: Measurement | Failure, warm_s: float | None = None) -> Trial:
    """Return a verified trial with the result of one more fresh process. If that process failed, so has the trial.

    A plan that works in one process and not in the next would fail after some restart. A process that the budget ended
    tells nothing, so the trial stays as it is.

    Args:
        trial: of the plan.
        found: the process's result.
        warm_s: seconds of its first calls from the caches of the trial, or None if it had none.
    """
    if isinstance(found, Failure) and found.kind is FailureKind.OUT_OF_BUDGET:
        return trial
    if isinstance(found, Failure):
        return replace(trial, state=TrialState.FAIL, failure=found, reason=str(found))
    if trial.costs and trial.costs.warm_s is None:
        trial = replace(trial, costs=replace(trial.costs, warm_s=warm_s))
    trial = replace(trial, repeats=(*trial.repeats, found))
    return replace(trial, reason=f"verified, {trial.speedup}× eager's speed")


def relative_speeds(trials: Iterable[Trial], plan: Plan) -> dict[Plan, Interval]:
    """Return a plan's speed over that of each plan it met in a duel, or is linked to by a chain of duels."""
    ratios = [(t.plan, t.duel.rival, t.duel.measurement.speedup) for t in trials if t.duel and t.duel.measurement]
    edges = [*ratios, *((rival, plan, ratio.inverse) for plan, rival, ratio in ratios)]
    found = {plan: Interval(1.0, 1.0, 1.0)}
    border = [plan]
    while border:
        at = border.pop(0)
        for one, other, ratio in edges:
            if one == at and other not in found:
                so_far = found[at]
                found[other] = Interval(so_far.low * ratio.low, so_far.mid * ratio.mid, so_far.high * ratio.high)
                border.append(other)
    return {other: ratio for other, ratio in found.items() if other != plan}


def first_graph_break(trials: Iterable[Trial]) -> str:
    """Return where and why the graph breaks first, by the first trial that tells, or "" if none does."""
    for trial in trials:
        failed = trial.failure.message if trial.failure else ""
        if found := trial.graph_break or failed.partition(NOTHING_COMPILED)[2]:
            return found
    return ""


def eager_measured(inspected: Measurement, in_trials: Iterable[Measurement]) -> Measurement:
    """Return the measurement that gives eager's time.

    That is the inspection's, unless eager was far quicker in a trial. Then the inspection was disturbed, and the trial
    in which eager was quickest counts.

    If threads wait for cores, eager's time varies from one moment to the next, and that is its real time. If they
    waited in most of the measurements, the median of those counts. If they waited in a few, the others count.
    """
    timed = [measurement for measurement in (inspected, *in_trials) if measurement.baseline_s]
    waited = sorted((m for m in timed if m.is_contended), key=lambda m: m.baseline_time.mid)
    if inspected.is_contended and 2 * len(waited) > len(timed):
        return waited[len(waited) // 2]
    timed = [measurement for measurement in timed if not measurement.is_contended] or timed
    quickest = min(timed, key=lambda measurement: measurement.baseline_time.mid, default=inspected)
    if not inspected.baseline_s or inspected.baseline_time.mid <= INTERFERENCE_FACTOR * quickest.baseline_time.mid:
        return inspected
    return quickest


def eager_peak_memory(inspected: int | None, in_trials: Iterable[int | None]) -> int | None:
    """Return the peak bytes of an eager call, or None if that was never measured.

    The peak is measured in the inspection and in every trial. The least counts, since anything else that a process does
    at that time can only add.
    """
    return min((peak for peak in (inspected, *in_trials) if peak is not None), default=None)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of plans over a number of calls, and over at least one process start.

    Attributes:
        baseline_s: seconds per call of eager.
    """

    baseline_s: float
    calls: int
    restarts: int = 1

    @property
    def baseline_cost(self) -> float:
        """Seconds that eager takes for all calls."""
        return self.calls * self.baseline_s

    def overhead(self, trial: Trial) -> float:
        """Return the seconds of compiling over all restarts. An unknown warm cost counts as cold."""
        assert trial.costs is not None, "only a compiled trial has costs"
        warm = trial.costs.cold_s if trial.costs.warm_s is None else trial.costs.warm_s
        return trial.costs.cold_s + (self.restarts - 1) * warm

    def seconds_per_call(self, trial: Trial) -> Interval:
        """Return the seconds per call of the plan, on the scale of the baseline."""
        speedup = trial.speedup
        assert speedup is not None, "only a timed trial has a speed"
        return Interval(*(self.baseline_s / factor for factor in (speedup.high, speedup.mid, speedup.low)))

    def cost(self, trial: Trial) -> Interval:
        """Return the expected seconds for everything: compiling, and all calls."""
        each, fixed = self.seconds_per_call(trial), self.overhead(trial)
        return Interval(*(fixed + self.calls * seconds for seconds in (each.low, each.mid, each.high)))

    def break_even_calls(self, trial: Trial) -> Interval | None:
        """Return the calls after which the plan has paid for its compilation, or None if it may never."""
        each, fixed = self.seconds_per_call(trial), self.overhead(trial)
        gains = [self.baseline_s - seconds for seconds in (each.low, each.mid, each.high)]
        if gains[-1] <= 0:
            return None
        return Interval(*(fixed / gain for gain in gains))

    def compute_saving(self, trial: Trial) -> float:
        """Return the seconds saved over all calls, or their lower bound if the speed-up names no figure."""
        assert trial.speedup is not None, "only a timed trial has a speed"
        cost = self.cost(trial)
        return self.baseline_cost - (cost.mid if trial.speedup.is_usable else cost.high)

    def return_on_compiling(self, trial: Trial) -> Interval | None:
        """Return the net saving over the seconds of compiling: 1 reads "100 %, as much again". None costs nothing."""
        invested, cost = self.overhead(trial), self.cost(trial)
        if invested <= 0:
            return None
        return Interval(*((self.baseline_cost - spent) / invested for spent in (cost.high, cost.mid, cost.low)))

    def count_calls(self, seconds: float) -> float:
        """Return how many calls eager answers in this time: those lost while nothing but compiling is done."""
        return seconds / self.baseline_s if self.baseline_s > 0 else 0.0

    def probability_of_loss(self, trial: Trial) -> float:
        """Return the probability that the plan costs more than eager over all calls, by the speed-up's interval."""
        assert trial.speedup is not None, "only a timed trial has a speed"
        remaining = self.baseline_cost - self.overhead(trial)
        return probability_below(trial.speedup, self.baseline_cost / remaining) if remaining > 0 else 1.0

    def surely_pays(self, trial: Trial) -> bool:
        """Whether the plan costs less than eager even at the slow end of its interval."""
        return self.cost(trial).high < self.baseline_cost
