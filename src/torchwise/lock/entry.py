"""One locked plan: the decision, the permitted numerics, and the result of verification."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchwise.environment import Environment
from torchwise.plan import Numerics
from torchwise.records import Decision, Interval, Study

DIGITS = 4
"""Significant digits of stored figures, which is more than any measurement has."""
HARDWARE = ("device", "system", "cpu", "cpus", "cores_allowed", "gpu", "gpu_memory_mib", "gpu_capability")
"""Fields of an environment about the machine. A new section replaces one of equal hardware with any software."""
SOFTWARE = ("python", "torch", "triton", "cuda", "driver")
"""Fields of an environment about software. The host's name is in neither, since equal machines share a section."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One locked plan.

    Attributes:
        decision: the decision, its figures rounded to four digits. The environment has no host name.
        allow: the loosest numerics that were permitted.
        verdict: result of verification, as text.
        plan_s: seconds per call of the plan, in the process that timed it, or None for eager.
        notes: warnings about the measurement.
    """

    decision: Decision
    allow: Numerics
    verdict: str
    plan_s: Interval | None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Target, mode and hardware: a file holds one section for each key."""
        return self.decision.workload.target, self.decision.workload.mode, self.hardware

    @property
    def hardware(self) -> str:
        """The machine as text, with the limit on its CPUs if there is one."""
        return self.decision.environment.limited_hardware


def is_same_hardware(one: Environment, other: Environment) -> bool:
    """Whether two machines are of one kind."""
    return not set(HARDWARE) & set(one.list_different_fields(other))


def entry_of(study: Study) -> Entry:
    """Return the entry to lock for a decided study."""
    decision = study.decision
    assert decision is not None, "only decided studies are locked"
    trial = next((t for t in study.trials if t.plan == decision.plan and t.is_verified), None)
    verdict = trial.verdict.reason if trial and trial.verdict else "the plan is eager"
    measurement = trial.measurement if trial else None
    plan_s, notes = (measurement.candidate_time, measurement.caveats) if measurement else (None, ())
    return Entry(_round_decision(decision), study.allow, verdict, _interval(plan_s), notes)


def _round_decision(decision: Decision) -> Decision:
    return replace(
        decision,
        speedup=_interval(decision.speedup),
        break_even_calls=_interval(decision.break_even_calls),
        saved_s=_number(decision.saved_s),
        baseline_s=_number(decision.baseline_s),
        cold_s=_number(decision.cold_s),
        warm_s=None if decision.warm_s is None else _number(decision.warm_s),
        error=None if decision.error is None or math.isnan(decision.error) else _number(decision.error),
        environment=replace(decision.environment, hostname=""),
    )


def _interval(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(*map(_number, (interval.low, interval.mid, interval.high)))


def _number(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
