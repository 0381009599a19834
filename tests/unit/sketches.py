"""The smallest records that a decision can be made from, with intervals that can be worked out by hand."""

from __future__ import annotations

import math
from typing import Any

from torchwise.environment import Environment
from torchwise.plan import Plan, Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, Costs, Inspection, Measurement, Outcome, Trial, TrialState, Verdict
from torchwise.study.history import History

HERE = Environment(
    device="cpu",
    hostname="here",
    system="Linux x86_64",
    cpu="Example CPU @ 3.00 GHz",
    cpus=8,
    python="3.11.9",
    torch="2.13.0+cpu",
)
INDUCTOR = Plan(backend="inductor")
CAPTURE = Plan(capture="call")
PASSED = Verdict((Check("values", Outcome.PASS, "agrees", error=1e-7, floor=1e-7),))
FAILED = Verdict((Check("values", Outcome.FAIL, "output[0] is off by 0.3", error=0.3, floor=1e-7),))
NOT_COMPARABLE = Verdict((Check("values", Outcome.NOT_COMPARABLE, "eager disagrees with itself"),))


STUDENT_4 = 2.7764451051977934
"""Quantile of Student's t with 4 degrees of freedom for an interval of 95 %."""


def make_measurement(low: float, high: float | None = None, **changes: Any) -> Measurement:
    """Return a measurement whose speed-up is exactly [low, high], with the middle between them.

    Two pairs of samples give their range as the interval, and their mean as the median.
    """
    ends = (low, low if high is None else high)
    return Measurement(tuple(1 / end for end in ends), (1.0, 1.0), **changes)


def make_process_measurements(low: float, high: float | None = None) -> list[Measurement]:
    """Return measurements of five processes, whose speed-up across them is [low, high], with their geometric mean.

    Two of them lie off the middle, just so far that their spread is that of the interval.
    """
    high = low if high is None else high
    mid = math.sqrt(low * high)
    off = math.exp(math.log(high / low) / 2 * math.sqrt(2 * 5) / STUDENT_4)
    return [make_measurement(mid * factor) for factor in (1.0, 1.0, 1.0, off, 1 / off)]


def a_trial(
    plan: Plan,
    low: float = 2.0,
    high: float | None = None,
    *,
    cold_s: float = 10.0,
    warm_s: float | None = None,
    peak: int | None = None,
    eager_peak: int | None = None,
    **changes: Any,
) -> Trial:
    """Return a verified trial of `plan` with the speed-up [low, high], as five processes agree on it."""
    first, *others = make_process_measurements(low, high)
    fields: dict[str, Any] = {
        "number": 0,
        "state": TrialState.COMPLETE,
        "measurement": first,
        "repeats": tuple(others),
        "verdict": PASSED,
        "costs": Costs(cold_s, warm_s, peak, eager_peak),
    }
    return Trial(plan=plan, **{**fields, **changes})


def an_inspection(baseline_s: float = 1.0, **changes: Any) -> Inspection:
    """Return the inspection of a plain model that takes `baseline_s` seconds a call."""
    fields: dict[str, Any] = {
        "identity": "1d" * 8,
        "structure": "57" * 8,
        "description": "Net, 25.6 M parameters, float32",
        "inputs": ("[0][0] float32[8, 16] (16, 1)",),
        "traits": frozenset(map(Trait, {"module", "floating", "float32", "gemm"})),
        "measurement": Measurement((baseline_s,), (baseline_s,)),
        "first_call_s": 0.01,
        "shares": {},
    }
    return Inspection(**{**fields, **changes})


def a_history(*trials: Trial, baseline_s: float = 1.0, inspection: Inspection | None = None, **asked: Any) -> History:
    """Return the knowledge after `trials` of a model that takes `baseline_s` seconds a call."""
    workload = WorkloadSpec(**{"target": "zoo:tutorial.fusion_demo", "calls": 1000, **asked})
    return History(workload, inspection or an_inspection(baseline_s), trials)
