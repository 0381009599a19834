"""One candidate plan, tried: what became of it, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from torchwise.plan import Plan
from torchwise.records.answer import Answer
from torchwise.records.bounds import Amount, Count, Seconds
from torchwise.records.measurement import Measurement
from torchwise.records.processes import cold_speedup_across, is_faster_across, observed_across, speedup_across
from torchwise.records.statistics import Interval
from torchwise.records.verdict import Outcome, Verdict


class TrialState(StrEnum):
    """Where a trial stands. COMPLETE says that it ran, not that it passed: the verdict says that."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAIL = "fail"

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen to it."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class FailureKind(StrEnum):
    """The ways in which a worker ends without a result."""

    TIMED_OUT = "timed out"
    DIED = "died"
    RAISED = "raised"
    OUT_OF_MEMORY = "out of memory"
    UNSUPPORTED = "unsupported"
    HELD_UP = "was held up"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker ended without a result.

    Attributes:
        kind: which of the ways.
        stage: what the worker was doing: "start", "load", "run eager", "compile", "verify", "measure", "warm compile",
            or what another task than a trial's calls its stages.
        message: the exception, the signal's name, or the limit that was passed.
        traceback: of the exception, or of what a worker was doing when its time was up, where there is one.
        no_effect: a part of the plan that changed nothing, by its field and value; None where that is not why.
    """

    kind: FailureKind
    stage: str
    message: str
    traceback: str = ""
    no_effect: tuple[str, str] | None = None

    def __str__(self) -> str:
        """Return such as "died in compile: SIGSEGV"."""
        return f"{self.kind} in {self.stage}: {self.message}"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a plan costs besides its calls.

    Attributes:
        cold_s: seconds that the first calls took beyond steady calls, with empty compile caches.
        warm_s: the same in a new process with the caches that the cold run left; None where not measured.
        peak_memory: bytes at the peak of one call above what was held before it, and on a GPU what the plan holds
            between calls (copies of weights, pools of captured graphs); None where not measurable.
        baseline_peak_memory: bytes at the peak of one call of eager above what was held before it.
        cache_bytes: size of the compile caches that the plan left.
    """

    cold_s: Seconds
    warm_s: Seconds | None = None
    peak_memory: Count | None = None
    baseline_peak_memory: Count | None = None
    cache_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Duel:
    """A plan against a rival that its trial may not tell it from: both in one process, timed in alternation.

    Attributes:
        rival: what led when they met.
        measurement: of the plan, with the rival in eager's place; None where there was no duel to the end.
        failure: why there was none.
        seconds: wall time that it took, without waiting for others who had the device.
    """

    rival: Plan
    measurement: Measurement | None = None
    failure: Failure | None = None
    seconds: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate plan, tried.

    Attributes:
        number: position in the study, from 0.
        plan: the candidate.
        state: where it stands.
        reason: why it was proposed, and then why it ended as it did, in words.
        failure: set for FAIL when the worker ended without a result.
        measurement: set once timed.
        verdict: set once verified.
        costs: set once compiled.
        seconds: wall time that the trial took, worker start included, without waiting for others who had the device.
        started_at: seconds since the epoch.
        duel: with a rival that it was worth telling it from; None where it challenged none.
        repeats: measurements of the plan in further fresh processes.
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

    @property
    def processes(self) -> tuple[Measurement, ...]:
        """What was measured of the plan, one measurement for each process."""
        return (self.measurement, *self.repeats) if self.measurement and self.measurement.candidate_s else ()

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the plan's, by which the plan is judged everywhere; None where nothing was timed."""
        return speedup_across(self.processes) if self.processes else None

    @property
    def cold_speedups(self) -> tuple[Interval, ...]:
        """The speed-up with cold processor caches, in each of the processes that timed it so."""
        return tuple(cold for process in self.processes if (cold := process.cold_speedup) is not None)

    @property
    def cold_speedup(self) -> Interval | None:
        """The same over these processes; None where none did. It stands beside `speedup`, and decides nothing."""
        return cold_speedup_across(self.processes)

    @property
    def observed(self) -> Interval | None:
        """The speed-up as far as it was seen, so that of a single process is its own: how disturbed measuring was."""
        return observed_across(self.processes) if self.processes else None

    @property
    def is_faster(self) -> Answer | None:
        """Whether the plan is faster than eager; None where nothing was timed."""
        return is_faster_across(self.processes) if self.processes else None

    @property
    def is_timed(self) -> bool:
        """Whether it was timed and so had passed its checks: a pruned one too, and one that failed afterwards not."""
        return self.measurement is not None and self.costs is not None and self.state is not TrialState.FAIL

    @property
    def is_proven(self) -> bool:
        """Whether it ran, was timed, and every check passed: only such a trial can be decided for."""
        return (
            self.state is TrialState.COMPLETE
            and self.measurement is not None
            and self.costs is not None
            and self.verdict is not None
            and self.verdict.outcome is Outcome.PASS
        )

    @property
    def is_promising(self) -> bool:
        """Whether it is proven, and was surely faster than eager in its own process: it may be worth more of them."""
        return self.is_proven and self.measurement is not None and self.measurement.speedup.low > 1


def with_repeat(trial: Trial, found: Measurement | Failure) -> Trial:
    """Return a proven trial with what one more fresh process found; where that failed, so has the trial.

    A plan that works in one process and not in the next would fail after some restart.
    """
    if isinstance(found, Failure):
        return replace(trial, state=TrialState.FAIL, failure=found, reason=str(found))
    trial = replace(trial, repeats=(*trial.repeats, found))
    return replace(trial, reason=f"proven, {trial.speedup}× eager's speed")


def speeds_beside(trials: Iterable[Trial], plan: Plan) -> dict[Plan, Interval]:
    """Return a plan's speed over that of each that it met in a duel, or that duels lead to from one to the next."""
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
