"""Locked targets for tests: studies of this machine and of another one, and a worker that answers from a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from store_samples import PASSED, a_decision
from store_samples import a_study as a_stored_study
from torchwise import environment
from torchwise.environment import Environment
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Costs,
    Failure,
    Inspection,
    Interval,
    Measurement,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
    codec,
)
from torchwise.study.lock import Entry
from torchwise.study.lock.entry import entry_of
from torchwise.trial import Job, Limits
from torchwise.trial.job import Attempt

TARGET = "app.py:make"
INDUCTOR = Plan(backend="inductor", options=(("coordinate_descent_tuning", True),))
HERE = environment.detect("cpu")
FAR = replace(HERE, hostname="far", cpu="Other CPU @ 9.00 GHz", cpus=64, cores_allowed=64.0)
EAGER_S = 0.010
"""Seconds per call of eager when it was locked."""


def make_measurement(speedup: float, eager_s: float = EAGER_S, noise: float = 0.001) -> Measurement:
    """Return paired samples of a plan this much faster than eager."""
    factors = [1 + noise * step for step in (-2, -1, 0, 1, 2)] * 8
    eager = tuple(eager_s * factor for factor in factors)
    return Measurement(tuple(eager_s / speedup * factor for factor in reversed(factors)), eager)


def a_study(
    target: str = TARGET, plan: Plan = INDUCTOR, speedup: float = 2.0, here: Environment = HERE, **asked: Any
) -> Study:
    """Return a study that was decided for `plan`."""
    spec = WorkloadSpec(target, **asked)
    timed, eager = replace(make_measurement(speedup), notes=("the machine was busy", "and noisy")), plan == EAGER
    trial = Trial(0, plan, TrialState.COMPLETE, measurement=timed, verdict=PASSED, costs=Costs(10.0, 2.0))
    decision = a_decision(
        plan,
        reason="Stay with eager: nothing pays." if eager else f"Run {plan}: {timed.speedup} times eager's speed.",
        speedup=None if eager else timed.speedup,
        break_even_calls=None if eager else Interval(10.0, 20.0, float("inf")),
        baseline_s=0.010012345678,
        saved_s=0.0 if eager else 123.456789,
        workload=spec,
        environment=here,
        error=None if eager else 1.23456e-7,
    )
    return replace(
        a_stored_study(target=target),
        workload=spec,
        environment=here,
        state=StudyState.DECIDED,
        trials=() if eager else (trial,),
        decision=decision,
    )


def an_entry(target: str = TARGET, plan: Plan = INDUCTOR, **options: Any) -> Entry:
    """Return the locked part of `a_study`."""
    return entry_of(a_study(target, plan, **options))


class Worker:
    """A launcher that runs nothing: the plain model is as it was locked, and each plan as it is told."""

    def __init__(self, *tries: Measurement | Verdict | Failure, **inspection: Any) -> None:
        self.tries = list(tries)
        self.inspection = inspection
        self.ran: list[Job] = []

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        self.ran.append(job)
        if job.task == "inspect":
            return codec.to_json(self.inspect())
        answer = self.tries.pop(0)
        if isinstance(answer, Failure):
            return answer
        if isinstance(answer, Verdict):
            return codec.to_json(Attempt(Costs(1.0), answer))
        return codec.to_json(Attempt(Costs(1.0), PASSED, answer))

    def inspect(self) -> Inspection:
        decision = a_decision()
        found = Inspection(
            decision.identity,
            decision.structure,
            "Net",
            decision.inputs,
            frozenset({"gemm"}),
            make_measurement(1.0),
            0.1,
        )
        return replace(found, **self.inspection)

    @property
    def tasks(self) -> list[str]:
        return [job.task for job in self.ran]
