"""The facts from which the next plan is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.choice import Stage, find_choice
from torchwise.plan.rules import iter_changes
from torchwise.plan.space import choices_of, compile_factor_of
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, FailureKind, Inspection, Outcome, Trial, TrialState, WorkerStage
from torchwise.records.statistics import Interval
from torchwise.records.trial import CostModel, eager_measured, eager_peak_memory

PLAIN_COMPILE_S = {"cpu": 12.0, "cuda": 4.0}
"""Seconds of a plain compile, until one was seen (small models: 10 to 20 s on two cores, 2 to 5 s on an H200)."""
PER_OPERATOR_S = 0.03
"""Seconds added to a plain compile for each operator of a call, until one was seen.

Measured: 0.045 on two cores (1004 operators 43 s, 2200 in 100 Gross-Pitaevskii steps 109 s), 0.05 on an H200 (165 take
11 s, 443 take 21 to 29 s). It is less if the graph is broken or a library computes, so this is a little less, too.
"""
BESIDE_S = 2.0
"""Seconds of a trial beside compiling (start, verification, timing), until one was seen."""
TIE = 0.02
"""Expected costs that differ by less than this share are tied, and the simpler plan wins: eager is the simplest."""
BETWEEN_S = 5e-6
"""Seconds of a CPU between two operators, at most.

C++ around the kernels saved half a microsecond each when there was hardly any work (`benchmarks/cpp_wrapper.py`, torch
2.13, Xeon). The margin is for slower hosts and short calls.
"""
ORDER = (Stage.FORM, Stage.MODEL, Stage.CALL, Stage.TRACE, Stage.GRAPH, Stage.PASS, Stage.SETTING)
"""The stages of transforms in the order in which each is given the result of those before."""
UNKNOWN = object()
"""Stands for the value of a field that plans have in another version, which shares the store."""
QUICK = 0.5
"""Compile time, as a multiple of a plain compile, up to which a compiler's trial takes no other plan's place."""
WARM_SHARE = 0.3
"""Ratio of warm to cold compile time, assumed until seen."""


def lays_out_by_itself(plan: Plan) -> bool:
    """Return whether the compiler alone decides the memory layout of a plan's outputs."""
    is_as_given = plan.memory_format == "preserve" and plan.precision in ("native", "tf32")
    return plan.backend == "inductor" and is_as_given and "eager_strides" not in plan.transforms


def code_of(plan: Plan) -> frozenset[Any]:
    """Return the parts of a plan that decide its compiled code: all but its capture and its number of threads."""
    modes = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
    others = (part for part in iter_changes(plan) if part[0] not in ("capture", "threads", "mode"))
    return frozenset([*others, ("mode", modes.get(plan.mode, plan.mode))])


def has_part(plan: Plan, field: str, value: Any) -> bool:
    """Whether a plan has a value in a field, or among its transforms or options. A tuple of these stands for all."""
    own: Any = getattr(plan, field, UNKNOWN)
    return bool(value == own or (field in ("transforms", "options") and value in own))


def _acts_before(part: tuple[str, Any], name: str) -> bool:
    """Whether a part of a plan surely acts before a transform, which so changes nothing in what the part is given.

    A backend that is refused for what it is given names the transforms, too. Otherwise, this machine lacks it.
    """
    if part[0] == "backend":
        return True
    own, other = _find_place(part), _find_place(("transforms", name))
    return own is not None and other is not None and own < other


def _is_given_result(part: tuple[str, Any], name: str) -> bool:
    """Whether a part of a plan is surely given the result of a transform, which may be why it is refused."""
    own, other = _find_place(part), _find_place(("transforms", name))
    return own is not None and other is not None and own >= other and part != ("transforms", name)


def _find_place(part: tuple[str, Any]) -> int | None:
    """Return the place of a part's stage in the order, or None if it has no stage."""
    choice = find_choice(*part)
    return ORDER.index(choice.stage) if choice is not None and choice.stage is not None else None


def sets_threads_alone(plan: Plan) -> bool:
    """Return whether a plan is eager on another number of threads."""
    return plan != EAGER and replace(plan, threads=None) == EAGER


def takes_a_trial(plan: Plan) -> bool:
    """Return whether a trial of the plan counts among those of an effort.

    Another number of threads compiles nothing, and a compiler that is much quicker than Inductor hardly any longer.
    Neither must take the place of a plan that is built with care.
    """
    return replace(plan, threads=None) != Plan(backend=plan.backend) or compile_factor_of(plan) > QUICK


def judged_by_user(plan: Plan) -> frozenset[str]:
    """Return the rewrites of a plan that are judged by the limit that the user states."""
    return frozenset(c.value for c in choices_of(plan) if c.field == "transforms" and c.numerics.is_judged_by_user)


@dataclass(frozen=True, slots=True)
class History:
    """One study so far.

    Attributes:
        trials: every trial, those still running included.
        left_s: seconds of search that are left.
    """

    workload: WorkloadSpec
    inspection: Inspection
    trials: tuple[Trial, ...]
    left_s: float = math.inf

    @property
    def economics(self) -> CostModel:
        """Costs on this study's baseline, calls and restarts."""
        return CostModel(self.baseline_time.mid, self.workload.calls, self.workload.restarts)

    @property
    def baseline_time(self) -> Interval:
        """Seconds per call of eager."""
        beside = (t.measurement for t in self.iter_timed() if t.measurement)
        return eager_measured(self.inspection.measurement, beside).baseline_time

    @property
    def traits(self) -> frozenset[Trait]:
        """The traits of the workload: from the inspection, and those that only compiling it showed."""
        verdicts = [t.verdict for t in self.trials if t.verdict and lays_out_by_itself(t.plan)]
        checks = (check for verdict in verdicts for check in verdict.checks)
        is_restrided = any(check.name == CheckName.STRIDES and check.outcome is Outcome.FAIL for check in checks)
        if is_restrided and all(verdict.outcome is not Outcome.PASS for verdict in verdicts):
            return self.inspection.traits | {Trait.RESTRIDED}
        return self.inspection.traits

    def find_trial(self, plan: Plan) -> Trial | None:
        """Return the trial of a plan, or None."""
        return next((trial for trial in self.trials if trial.plan == plan), None)

    def with_trial(self, trial: Trial) -> History:
        """Return the history with a trial in place of that of the same plan."""
        others = (other for other in self.trials if other.plan != trial.plan)
        return replace(self, trials=(*others, trial))

    def find_refusal(self, plan: Plan) -> Trial | None:
        """Return the trial that was refused for parts of its plan that `plan` has as well, or None.

        Such a part changes nothing in this model, cannot be had, or changes it by more than the user allows. A part
        works on the model that other transforms leave. So the trial tells nothing of a plan with transforms before it
        that the trial's plan had not, or without those whose result the part was given.
        """
        for trial in self.trials:
            if trial.changes_too_much and judged_by_user(trial.plan) <= judged_by_user(plan):
                return trial
            parts = trial.failure.about if trial.failure else ()
            if parts and all(has_part(plan, *part) for part in parts):
                earlier = {name for name in plan.transforms if not all(_acts_before(part, name) for part in parts)}
                given = {n for n in trial.plan.transforms if any(_is_given_result(part, n) for part in parts)}
                if earlier <= set(trial.plan.transforms) and given <= set(plan.transforms):
                    return trial
        return None

    def refine(self, plan: Plan) -> Plan:
        """Return a plan with smaller rewrites in place of those that the user's limit refused.

        Where compiled outputs were seen to lie otherwise than eager's, it lays them out, too.
        """
        if Trait.RESTRIDED in self.traits and lays_out_by_itself(plan) and plan.scope != "rolled":
            plan = plan.with_choice("transforms", "eager_strides")
        smaller = dict(trial.instead for trial in self.trials if trial.instead)
        transforms = plan.transforms
        for _ in smaller:  # a smaller rewrite may have been refused as well
            transforms = tuple(smaller.get(name, name) for name in transforms)
        return plan if transforms == plan.transforms else replace(plan, transforms=transforms)

    def iter_timed(self) -> Iterator[Trial]:
        """Yield every timed trial, which had passed its checks, pruned ones included, failed ones not."""
        return (t for t in self.trials if t.is_timed)

    def seconds_of(self, plan: Plan) -> float:
        """Return the seconds per call of a plan that was timed (or of eager), on the baseline's scale."""
        trial = self.find_trial(plan)
        if trial is None or trial.measurement is None:
            return self.economics.baseline_s
        return self.economics.seconds_per_call(trial).mid

    def launch_gap_s(self, plan: Plan) -> float:
        """Return the seconds per call under a plan in which the GPU waits for the host, or a CPU computes nothing.

        The latter is a bound by the number of eager's operators, as a profile of a CPU does not tell the two apart.
        """
        if self.workload.device == "cpu":
            operators = self.inspection.operators
            return self.seconds_of(plan) if operators is None else min(BETWEEN_S * operators, self.seconds_of(plan))
        trial = self.find_trial(plan)
        if plan == EAGER or trial is None or trial.measurement is None:
            return self.inspection.shares.get("launch", 0.0) * self.economics.baseline_s
        return trial.measurement.launch_share * self.seconds_of(plan)

    def find_busy_s(self, plan: Plan) -> float | None:
        """Return the seconds per call in which the GPU computes under a plan, or None if that was not measured."""
        trial = self.find_trial(plan)
        is_known = plan == EAGER or (trial is not None and trial.measurement is not None and trial.measurement.busy_s)
        is_known = is_known and self.workload.device != "cpu"
        return self.seconds_of(plan) - self.launch_gap_s(plan) if is_known else None

    @property
    def eager_peak_memory(self) -> int | None:
        """Bytes of a call of eager at its peak, or None if unknown."""
        beside = (trial.costs.baseline_peak_memory for trial in self.trials if trial.costs)
        return eager_peak_memory(self.inspection.peak_memory, beside)

    def fits(self, trial: Trial) -> bool:
        """Return whether a trial's plan keeps the limits of memory, which an unknown peak never does, and latency."""
        limit, peak = self.workload.memory_limit, trial.costs.peak_memory if trial.costs else None
        if limit is not None and (peak is None or peak > limit):
            return False
        longest_s = self.workload.call_limit_s
        return longest_s == math.inf or trial.speedup is None or self.economics.seconds_per_call(trial).mid <= longest_s

    @property
    def eager_fits(self) -> bool:
        """Whether eager keeps the limits of memory and latency, and has the required properties."""
        fits_time = self.economics.baseline_s <= self.workload.call_limit_s
        return self.eager_fits_memory and fits_time and self.eager_lack is None

    @property
    def eager_lack(self) -> Check | None:
        """The check that shows that eager lacks a required property, or None if it has all."""
        return next((check for check in self.inspection.properties if check.outcome is not Outcome.PASS), None)

    def list_lacking(self) -> list[Trial]:
        """List the trials of right plans that were timed, and refused only because they lack a required property."""
        return [t for t in self.iter_timed() if t.verdict and t.verdict.lacks_property_alone and self.fits(t)]

    @property
    def eager_fits_memory(self) -> bool:
        """Whether eager keeps the memory limit, which an unknown peak is assumed to do."""
        limit, peak = self.workload.memory_limit, self.eager_peak_memory
        return limit is None or peak is None or peak <= limit

    def list_paying(self) -> list[Trial]:
        """List the verified plans that fit and cost less than eager, certainly and by more than a tie.

        If eager itself does not fit, every plan that fits is one of them.
        """
        economics = self.economics
        most = economics.baseline_cost * (1 - TIE)
        verified = [t for t in self.trials if t.is_verified and self.fits(t)]
        if not self.eager_fits:
            return verified
        return [t for t in verified if economics.surely_pays(t) and economics.cost(t).mid < most]

    def list_promising(self) -> list[Trial]:
        """List the verified plans that fit and may cost less than eager by more than a tie, the likeliest first.

        A search goes on from these. It takes more processes than a trial's own to tell whether they pay for certain.
        """
        economics, eager_fits = self.economics, self.eager_fits
        most = economics.baseline_cost * (1 - TIE) if eager_fits else math.inf
        verified = [t for t in self.trials if self.fits(t) and (t.is_promising if eager_fits else t.is_verified)]
        costs = [(economics.cost(trial).mid, trial) for trial in verified]
        return [trial for cost, trial in sorted(costs, key=lambda pair: pair[0]) if cost < most]

    def incumbent(self) -> Plan:
        """Return the promising plan of least expected cost, or eager if there is none."""
        return next((trial.plan for trial in self.list_promising()), EAGER)

    @property
    def eager_threads(self) -> int | None:
        """Threads of an operator in eager, or None if that was not observed."""
        cores = self.inspection.measurement.cores
        return cores.threads if cores else None

    def foundation(self) -> Plan:
        """Return the plan that compiled ones are built on: the incumbent, or another number of threads alone.

        If threads wait for cores, eager's time varies widely, and it may stay inconclusive whether fewer threads are
        faster. Code compiled for as many threads as eager has waits as eager does, so the better number goes first.
        """
        leader = self.incumbent()
        if leader != EAGER or Trait.CONTENDED_CORES not in self.inspection.traits:
            return leader
        alone = [t for t in self.iter_timed() if t.is_verified and sets_threads_alone(t.plan)]
        return min((EAGER, *(t.plan for t in alone)), key=self.seconds_of)

    def fastest_compiled(self) -> Plan | None:
        """Return the quickest plan that compiles, even one slower than eager: its launch gaps may still be removed."""
        return next(iter(self.list_fastest_compiled()), None)

    def list_fastest_compiled(self) -> list[Plan]:
        """List the quickest plan of each backend that compiles, the quickest of all first.

        The options of one backend mean nothing to another, so each is improved on its own.
        """
        compiled = [trial for trial in self.iter_timed() if trial.plan.backend != "eager"]
        fastest: dict[str, Plan] = {}
        for trial in sorted(compiled, key=lambda t: self.economics.seconds_per_call(t).mid):
            fastest.setdefault(trial.plan.backend, trial.plan)
        return list(fastest.values())

    def overhead_of(self, plan: Plan) -> float:
        """Return the seconds of compiling a plan over all restarts: 0 for eager, predicted if not tried."""
        trial = self.find_trial(plan)
        if trial is not None and trial.costs is not None:
            return self.economics.overhead(trial)
        return self.predict_overhead_s(plan)

    def cost_of(self, plan: Plan) -> float:
        """Return the expected total seconds under a plan."""
        return self.overhead_of(plan) + self.workload.calls * self.seconds_of(plan)

    def predict_trial_s(self, plan: Plan, like: Trial | None = None) -> float:
        """Predict the seconds of a trial: compiling once, and the other time of trials so far.

        `like` is a whole trial that its own may take as long as, but for their modes of compiling.
        """
        predicted_s = self.predict_cold_s(plan) + self.min_noncompile_s
        if like is None:
            return predicted_s
        cold_s, factor = like.costs.cold_s if like.costs else 0.0, compile_factor_of(like.plan)
        own_s = cold_s * compile_factor_of(plan) / factor if factor and like.plan.backend == plan.backend else cold_s
        return max(predicted_s, like.seconds - cold_s + own_s)

    @property
    def min_noncompile_s(self) -> float:
        """The least seconds of a timed trial so far beside compiling. One that was refused at once tells nothing."""
        beside = [t.seconds - (t.costs.cold_s if t.costs else 0.0) for t in self.iter_timed()]
        return max(min(beside, default=BESIDE_S), 0.0)

    def predict_cold_s(self, plan: Plan) -> float:
        """Predict the seconds of a plan's cold compile, from the compiles seen so far."""
        factor = compile_factor_of(plan)
        # Another compiler's time tells nothing of this one's.
        alike = [t for t in self.trials if t.costs and t.plan.backend == plan.backend != "eager"]
        alike = [t for t in alike if ("compiled_rnn" in t.plan.transforms) == ("compiled_rnn" in plan.transforms)]
        seen = [(t.costs.cold_s, compile_factor_of(t.plan)) for t in alike if t.costs]
        return factor * min((cold / f for cold, f in seen if f > 0), default=self._predict_plain_s(plan))

    def _predict_plain_s(self, plan: Plan) -> float:
        """Predict a plain compile by the number of operators. Those of an RNN count if it is compiled."""
        reach = Trait.RNN not in self.inspection.traits or "compiled_rnn" in plan.transforms
        operators = (self.inspection.operators or 0) if reach else 0
        return PLAIN_COMPILE_S[self.workload.device] + PER_OPERATOR_S * operators

    def ran_out(self, plan: Plan) -> Trial | None:
        """Return the trial that ran out of time while it compiled the very code that `plan` needs, or None."""
        for trial in self.trials:
            failure = trial.failure
            late = (FailureKind.TIMED_OUT, WorkerStage.COMPILE)
            is_late = failure is not None and (failure.kind, failure.stage) == late
            if is_late and plan.backend != "eager" and code_of(trial.plan) == code_of(plan):
                return trial
        return None

    def predict_overhead_s(self, plan: Plan) -> float:
        """Predict the seconds of compiling a plan over all restarts."""
        return self.predict_cold_s(plan) * (1 + (self.workload.restarts - 1) * WARM_SHARE)


def has_ended_early(trial: Trial, bound: float | None, limit_s: float, restarts: int) -> bool:
    """Return whether a trial was stopped or ran out of time, and would go on under this request.

    Calls, restarts, memory limit, effort and plans may differ in this request from the one that it was tried for.

    Args:
        bound: the speed-up below which a trial is stopped, or None.
        limit_s: seconds of a trial.
        restarts: process starts. From the second on, a warm start that was left out would be priced as cold.
    """
    if trial.state is TrialState.PRUNED and trial.measurement is not None:  # by its own process's measurement
        return bound is None or trial.measurement.speedup.high >= bound
    if restarts > 1 and trial.is_promising and trial.plan.backend != "eager":
        return trial.costs is not None and trial.costs.warm_s is None
    kind = trial.failure.kind if trial.failure else None
    return kind in (FailureKind.INTERFERED, FailureKind.OUT_OF_BUDGET) or (
        kind is FailureKind.TIMED_OUT and trial.seconds < limit_s
    )


def keep_known(finished: Trial, earlier: Trial | None) -> Trial:
    """Return a trial that has finished, or the verified one that it repeats if the repetition was cut off."""
    kind = finished.failure.kind if finished.failure else None
    is_cut = kind in (FailureKind.INTERFERED, FailureKind.OUT_OF_BUDGET)
    return replace(earlier, number=finished.number) if is_cut and earlier and earlier.is_verified else finished


def lacks_memory(trial: Trial) -> bool:
    """Return whether a trial ran out of memory: by its own word, or as the kernel ended it, which it does then."""
    failure = trial.failure
    if failure is None:
        return False
    return failure.kind is FailureKind.OUT_OF_MEMORY or (failure.kind, failure.message) == (FailureKind.DIED, "SIGKILL")
