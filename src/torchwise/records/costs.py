"""A plan's total time as a linear function of the number of calls, for the cost plot and for reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.study import Study
from torchwise.records.trial import Trial


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds spent as a straight line over the number of calls.

    Attributes:
        fixed_s: compilation, cold at the first start of the process and warm at every later one.
        per_call_s: median seconds per call.
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
