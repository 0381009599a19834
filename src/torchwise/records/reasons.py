"""Why a plan won or lost, as a sentence derived from its records, and the costs that are compared.

A plan may lose by itself: it failed, gave wrong answers or is slower than eager. The trial alone shows that, so live
progress reports it too. Or a plan loses to another: it does not pay back, or is no faster than the decided plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.decision import Decision
from torchwise.records.study import Study, StudyState
from torchwise.records.trial import FailureKind, Trial, TrialState, relative_speeds
from torchwise.records.verdict import Outcome, Verdict

MAX_LENGTH = 240
"""Maximum characters of a message shown in a sentence, since compilers write pages."""

_FAILURES = {
    FailureKind.TIMED_OUT: "took too long in {stage}: {message}",
    FailureKind.DIED: "its process died in {stage}: {message}",
    FailureKind.RAISED: "raised an error in {stage}: {message}",
    FailureKind.OUT_OF_MEMORY: "out of memory in {stage}: {message}",
    FailureKind.UNSUPPORTED: "not supported here: {message}",
    FailureKind.INTERFERED: "was disturbed in {stage}: {message}",
    FailureKind.OUT_OF_BUDGET: "not tried to the end, but ended in {stage}: {message}",
}


def why(trial: Trial, study: Study) -> str:
    """Explain why a trial's plan won or lost, or describe its state."""
    if is_decided(trial, study.decision):
        return describe_decision(study.decision) if study.decision else ""
    memory = workload_of(study).objective == "memory"
    exceeds = _explain_memory_limit(trial, study) or _explain_latency_limit(trial, study)
    return (
        _explain_unfinished(trial, study) or own_fault(trial, memory=memory) or exceeds or _explain_loss(trial, study)
    )


def is_decided(trial: Trial, decision: Decision | None) -> bool:
    """Whether the decision is for this trial's plan."""
    return decision is not None and not decision.plan.is_eager and trial.plan == decision.plan and trial.is_verified


def describe_decision(decision: Decision) -> str:
    """Describe the gain of deciding for the plan."""
    if decision.plan.is_eager:
        if decision.is_inconclusive:
            return "decided: the measurements cannot tell whether a plan is faster"
        return "decided: no verified plan saves more time than it takes to compile"
    if decision.workload.objective == "memory":
        return "decided: it has the lowest peak memory"
    if decision.saved_s <= 0:
        return "decided"
    return f"decided: saves {format_saving(decision)} over {show.pluralize(decision.workload.calls, 'call')}"


def format_saving(decision: Decision) -> str:
    """Return the saving of a decision, with "at least" if its speed-up is too uncertain."""
    least = "" if decision.speedup is None or decision.speedup.is_usable else "at least "
    return f"{least}{show.seconds(decision.saved_s)}"


def own_fault(trial: Trial, *, memory: bool = False) -> str:
    """Explain why a finished trial cannot be chosen, or return an empty string if it can.

    If memory is the objective, a plan need not be faster, only not slower.
    """
    verdict, measurement = trial.verdict, trial.measurement
    if trial.failure:
        failure = trial.failure
        return _FAILURES[failure.kind].format(stage=failure.stage, message=show.truncate(failure.message, MAX_LENGTH))
    if verdict and verdict.lacks_property_alone:
        speed = f", at {show.speedup(trial.speedup)} eager's speed" if trial.speedup else ""
        return f"right{speed}, but lacks a required property: {show.truncate(verdict.reason, MAX_LENGTH)}"
    if verdict and verdict.outcome is Outcome.FAIL:
        return f"wrong answer: {show.truncate(verdict.reason, MAX_LENGTH)}{_figures(verdict)}"
    if trial.state is TrialState.PRUNED:
        return _explain_pruning(trial)
    if trial.state is TrialState.FAIL:
        return f"failed: {show.truncate(trial.reason, MAX_LENGTH) or 'no reason was recorded'}"
    if verdict is None:
        return "not verified, so it cannot be chosen"
    if verdict.outcome is Outcome.NOT_COMPARABLE:
        return f"not comparable, so not verified: {show.truncate(verdict.reason, MAX_LENGTH)}"
    if measurement is None or not measurement.candidate_s:
        return "not timed, so it cannot be chosen"
    if trial.costs is None:
        return "its compile time was not measured, so it cannot be chosen"
    return _not_faster(trial, memory)


def _explain_unfinished(trial: Trial, study: Study) -> str:
    ended = study.state is not StudyState.RUNNING
    if trial.state is TrialState.WAITING:
        return "not tried: the search ended first" if ended else "waiting"
    if trial.state is TrialState.RUNNING:
        return "interrupted during the trial" if ended else "running"
    return ""


def _explain_memory_limit(trial: Trial, study: Study) -> str:
    limit, peak = workload_of(study).memory_limit, trial.costs.peak_memory if trial.costs else None
    if limit is None or (peak is not None and peak <= limit):
        return ""
    need = "its peak memory is unknown" if peak is None else f"its peak memory is {show.size(peak)}"
    return f"{need}, and the limit is {show.size(limit)}"


def _explain_latency_limit(trial: Trial, study: Study) -> str:
    limit, measured = workload_of(study).call_limit_s, trial.measurement
    time = measured.candidate_time.mid if measured and measured.candidate_s else 0.0
    if time <= limit:
        return ""
    return f"a call takes {show.seconds(time)}, and the latency limit leaves {show.seconds(limit)}"


def _figures(verdict: Verdict) -> str:
    """Return the error and the noise floor of the failed check, if it has them."""
    for check in verdict.checks:
        if check.outcome is Outcome.FAIL and check.error is not None:
            floor = "" if check.floor is None else f", noise floor {show.relative_error(check.floor)}"
            return f" (error {show.relative_error(check.error)}{floor})"
    return ""


def _explain_pruning(trial: Trial) -> str:
    if trial.measurement and trial.speedup:
        rounds = show.pluralize(len(trial.measurement.candidate_s), "round")
        return f"stopped after {rounds}: at {show.speedup(trial.speedup)} it could no longer lead"
    return f"stopped early: {show.truncate(trial.reason, MAX_LENGTH) or 'it could no longer lead'}"


def _not_faster(trial: Trial, memory: bool) -> str:
    speedup = trial.speedup
    if speedup is None:
        return ""
    if speedup.high < 1:
        return f"slower than eager: {show.speedup(speedup)}"
    if speedup.low <= 1 and not memory:
        if trial.is_faster is Answer.INCONCLUSIVE:
            return f"inconclusive: {show.speedup(speedup)} eager's speed, so it may be slower or faster"
        return f"no faster than eager: {show.speedup(speedup)}"
    return ""


def _explain_loss(trial: Trial, study: Study) -> str:
    """Explain why a verified plan that is not slower than eager lost to another."""
    decision = study.decision
    if message := _does_not_pay(trial, study):
        return message
    if workload_of(study).objective == "memory":
        return _memory(trial, study)
    if decision is None:
        return "verified, and pays back"
    if decision.plan.is_eager:
        return "faster, but may not save more time than it takes to compile"
    return _compare_to_decided(trial, decision, study)


def _does_not_pay(trial: Trial, study: Study) -> str:
    cost, baseline, expected = cost_of(trial, study), baseline_cost(study), workload_of(study).calls
    if cost is None or baseline is None:
        return ""
    calls = cost.break_even(baseline)
    if calls <= expected or math.isinf(calls):
        return ""
    needed = f"{show.seconds(cost.fixed_s)} of compiling need {show.count(calls)} calls to pay back"
    return f"faster, but does not pay back: {needed}, and {show.count(expected)} are expected"


def _compare_to_decided(trial: Trial, decision: Decision, study: Study) -> str:
    if ratio := relative_speeds(study.trials, trial.plan).get(decision.plan):
        figures = f"{show.speedup(ratio)} its speed, timed against each other"
        if ratio.high < 1:
            return f"slower than {decision.plan}: {figures}"
        if ratio.low > 1:
            return _faster(trial, decision, study, figures, ratio.mid)
        return f"no clear gain over {decision.plan} ({figures}), which is simpler or costs less to compile"
    speedup, best = trial.speedup, decision.speedup
    if speedup is None or best is None:
        return f"{decision.plan} was chosen"
    figures = f"{show.brief_speedup(speedup)} against {show.brief_speedup(best)}"
    if speedup.low > best.high:
        return _faster(trial, decision, study, figures, speedup.mid / best.mid)
    if speedup.overlaps(best) and speedup.mid < best.mid:
        return f"measured slower than {decision.plan} ({figures}), though their intervals overlap"
    if speedup.overlaps(best):
        return f"no clear gain over {decision.plan} ({figures}), which is simpler or costs less to compile"
    return f"slower than {decision.plan}: {figures}"


def _faster(trial: Trial, decision: Decision, study: Study, figures: str, ratio: float) -> str:
    """Say that a plan is `ratio` times as fast as the decided one, and whether compiling it takes longer than it saves.

    The records may not hold the reason of its loss, such as a decision only among the plans of `--plan`.
    """
    text = f"faster per call than {decision.plan} ({figures})"
    chosen = next((t for t in study.trials if is_decided(t, decision)), None)
    own, other = cost_of(trial, study), cost_of(chosen, study) if chosen else None
    if own is None or other is None:
        return text
    saved = workload_of(study).calls * other.per_call_s * (1 - 1 / ratio)
    return f"{text}, but compiling it takes longer than that saves" if own.fixed_s - other.fixed_s > saved else text


def _memory(trial: Trial, study: Study) -> str:
    """Describe how a plan's peak memory compares, if memory is the objective."""
    own, eager = trial.costs.peak_memory if trial.costs else None, study.eager_peak_memory
    if own is None or eager is None:
        return "its peak memory could not be measured"
    decision = study.decision
    figures = f"peak memory {show.size(own)}, eager's {show.size(eager)}"
    if decision is None:
        return f"verified: {figures}"
    if decision.plan.is_eager or own >= eager:
        return f"does not clearly need less memory: {figures}"
    return f"needs more memory than {decision.plan}, or is more complex: {figures}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds spent as a straight line over the number of calls, each of which takes the median.

    The fixed part is compilation, cold at the first start of the process and warm at every later one.
    """

    fixed_s: float
    per_call_s: float

    def seconds_after(self, calls: float) -> float:
        """Return the seconds spent after this many calls."""
        return self.fixed_s + calls * self.per_call_s

    def break_even(self, baseline: Cost) -> float:
        """Return the calls after which this has cost less than `baseline`, or infinity if that never happens."""
        gain, extra = baseline.per_call_s - self.per_call_s, self.fixed_s - baseline.fixed_s
        if gain > 0:
            return max(extra / gain, 0.0)
        return math.inf


def workload_of(study: Study) -> WorkloadSpec:
    """Return the workload that the decision is for. A study can be resumed with another number of calls."""
    return study.decision.workload if study.decision else study.workload


def cost_of(trial: Trial, study: Study) -> Cost | None:
    """Return the cost of a trial's plan, or None if it was not timed or its compilation not measured."""
    baseline = baseline_cost(study)
    if baseline is None or trial.costs is None or trial.speedup is None:
        return None
    if not (math.isfinite(trial.speedup.mid) and trial.speedup.mid > 0):
        return None
    return Cost(study.cost_model.overhead(trial), study.cost_model.seconds_per_call(trial).mid)


def baseline_cost(study: Study) -> Cost | None:
    """Return the cost of eager: its calls, and nothing before them."""
    return Cost(0.0, study.eager.baseline_time.mid) if study.eager.baseline_s else None
