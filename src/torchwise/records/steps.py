"""A plan step by step: built up from eager, one change at a time, each with the study's own trial of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchwise.errors import PlanError
from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import iter_changes, merge_changes
from torchwise.plan.words import PLUS
from torchwise.records import codec
from torchwise.records.shown import Shown
from torchwise.records.statistics import Interval
from torchwise.records.study import Study
from torchwise.records.trial import Trial, TrialState

SCHEMA = "torchwise.steps/1"
ORDER = ("transforms", "precision", "memory_format", "threads", "capture", "backend")
"""Fields in the order in which a plan is built up: operators and numbers first, and code that is compiled last."""


@dataclass(frozen=True, slots=True)
class PlanStep(Shown):
    """One change of a plan.

    Attributes:
        change: the choices that it adds, in words. There are several if they only go together.
        plan: eager with the changes so far.
        trial: the study's trial of that plan, or None if there is none.
        gain: its speed-up over the step before, or None if one of the two was not timed. The interval holds with at
            least 95 %, since it spans the ratios of all values in the intervals of the two over eager.
    """

    change: str
    plan: Plan
    trial: Trial | None = None
    gain: Interval | None = None

    def __repr__(self) -> str:
        gained = f"{self.gain} times the step before" if self.gain else "not measured"
        return f"<PlanStep + {self.change}: {gained}>"

    @property
    def speedup(self) -> Interval | None:
        """Its speed-up over eager, or None if it was not timed."""
        return self.trial.speedup if self.trial else None

    @property
    def is_missing(self) -> bool:
        """Whether it was not tried, or was stopped before its speed-up was certain."""
        return self.trial is None or not self.trial.state.is_finished or self.trial.state is TrialState.PRUNED

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON has it, with the number of its trial in the study."""
        trial, verdict = self.trial, self.trial.verdict if self.trial else None
        return {
            "change": self.change,
            "plan": self.plan.to_dict(),
            "plan_id": self.plan.id,
            "trial": trial.number if trial else None,
            "state": trial.state.value if trial else None,
            "speedup": codec.to_builtins(self.speedup),
            "gain": codec.to_builtins(self.gain),
            "outcome": verdict.outcome.value if verdict else None,
            "error": codec.to_builtins(verdict.error) if verdict else None,
        }


def list_steps(study: Study, plan: Plan | None = None) -> tuple[PlanStep, ...]:
    """Return the steps from eager to a plan, by default the decided one. Eager has none."""
    target = plan or (study.decision.plan if study.decision else EAGER)
    trials = {trial.plan: trial for trial in study.trials}
    steps: list[PlanStep] = []
    for reached in list_plans(target):
        before = steps[-1] if steps else None
        trial = trials.get(reached)
        gain = _divide(trial.speedup if trial else None, before.speedup if before else Interval(1.0, 1.0, 1.0))
        steps.append(PlanStep(_name_change(reached, before.plan if before else EAGER), reached, trial, gain))
    return tuple(steps)


def list_plans(plan: Plan) -> Iterator[Plan]:
    """Yield the plans on the way from eager to a plan: each has one change more, or several that only go together."""
    changes = sorted(iter_changes(plan), key=lambda change: _place(change[0]))
    made: list[tuple[str, Any]] = []
    while changes:
        change = next((one for one in changes if _is_legal([*made, one])), None)
        added = changes if change is None else [change]
        made += added
        changes = [one for one in changes if one not in added]
        yield Plan(**merge_changes(made))


def _place(field: str) -> int:
    return ORDER.index(field) if field in ORDER else len(ORDER)


def _is_legal(changes: Sequence[tuple[str, Any]]) -> bool:
    try:
        Plan(**merge_changes(changes))
    except PlanError:
        return False
    return True


def _name_change(plan: Plan, before: Plan) -> str:
    """Return the words of a plan that the one before lacks."""
    known = str(before).split(PLUS)
    return ", ".join(word for word in str(plan).split(PLUS) if word not in known)


def _divide(speedup: Interval | None, before: Interval | None) -> Interval | None:
    if speedup is None or before is None or before.low <= 0:
        return None
    return Interval(speedup.low / before.high, speedup.mid / before.mid, speedup.high / before.low)
