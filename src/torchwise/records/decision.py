"""Decisions about plans: that of a search for one model and machine, and approvals by people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.former_names import added_fields
from torchwise.plan import Plan
from torchwise.plan.rules import find_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.answer import Answer
from torchwise.records.codec import Document
from torchwise.records.statistics import Amount, Interval, Seconds

DECISION_SCHEMA = "torchwise.decision/1"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of required properties: the plan that would be chosen without them.

    Attributes:
        plan: that plan, whose answers are right.
        lacks: the required properties that it lacks.
        speedup: eager's time over its own.
        ratio: its speed over the speed of the decided plan, or of eager.
        seconds: expected seconds that it would save beyond the decision, over all calls and restarts.
    """

    plan: Plan
    lacks: tuple[str, ...]
    speedup: Interval
    ratio: Interval
    seconds: Seconds


@added_fields("price", "weights", "eager_fails")
@dataclass(frozen=True, slots=True)
class Decision(Document):
    """The decision: which plan to run, why, and for which model and machine it holds.

    Attributes:
        plan: the plan to run; `EAGER` says "leave it alone".
        reason: one sentence.
        speedup: eager's time over the plan's, or None for eager.
        break_even_calls: calls after which the plan has paid for its compilation, or None for eager.
        saved_s: expected seconds saved over all calls and restarts, minus costs, or 0 for eager. If the speed-up is too
            uncertain to name a figure, this is the lower bound.
        baseline_s: seconds per call of eager, on which the other figures are based.
        cold_s: cold compile cost of the plan in seconds.
        warm_s: warm compile cost per restart in seconds, or None if not measured.
        workload: the request.
        identity: the model and inputs it holds for.
        structure: the model alone, as `torchwise.workload.identity.structure` gives it.
        inputs: the signatures it was verified on, one line per example.
        environment: the machine and software it holds for.
        error: largest relative error of the plan against the float64 reference, or None for eager.
        structure_details: the parts of the structure, packed (`torchwise.workload.structure_details`), so that a stale
            decision can name the difference. Empty in decisions of earlier versions.
        answer: whether a plan pays: yes, no (eager stays), or inconclusive (eager stays, since the measurements do
            not show it). None in decisions of earlier versions.
        price: what the required properties cost, or None if nothing.
        weights: the digest of the weights on which the user's tolerance judged the plan, or "" if it judged none.
        eager_fails: whether eager lacks a required property, or exceeds a limit of memory or latency, so that speed did
            not decide.
    """

    plan: Plan
    reason: str
    speedup: Interval | None
    break_even_calls: Interval | None
    saved_s: float
    baseline_s: Seconds
    cold_s: Seconds
    warm_s: Seconds | None
    workload: WorkloadSpec
    identity: str
    structure: str
    inputs: tuple[str, ...]
    environment: Environment
    error: float | None = None
    structure_details: str = ""
    answer: Answer | None = None
    price: Price | None = None
    weights: str = ""
    eager_fails: bool = False
    schema: str = DECISION_SCHEMA

    def __repr__(self) -> str:
        return f"<Decision for {self.workload.target}: {self.reason}>"

    @property
    def is_inconclusive(self) -> bool:
        """Whether eager stays only because the measurements do not show whether a plan is faster."""
        return self.answer is Answer.INCONCLUSIVE

    @property
    def is_needed(self) -> bool:
        """Whether the plan was chosen for another reason than its speed, so that no minimum speed-up applies to it."""
        is_faster = self.speedup is not None and self.speedup.low > 1
        is_for_property = bool(self.workload.require) and not is_faster  # as decisions of earlier versions tell it
        is_for_memory = self.workload.objective == "memory"
        return not self.plan.is_eager and (self.eager_fails or is_for_property or is_for_memory)

    def list_changes(self, here: Environment) -> list[str]:
        """List how another machine or software differs, such as "torch: 2.11.0 there, 2.13.0 here".

        Compilers of other makers count if the plan needs such a package.
        """
        found = self.environment.differences(here)
        there = self.environment.compilers
        if there != here.compilers and any(choice.packages for choice in find_choices(self.plan)):
            found.append(f"compilers: {there} there, {here.compilers} here")
        return found

    def check_read(self) -> None:
        """Raise an InputError for an error below 0."""
        if self.error is not None and self.error < 0:
            raise InputError(f"error is {self.error}, but must be at least 0")


APPROVAL_SCHEMA = "torchwise.ruling/1"


class Standing(StrEnum):
    """Somebody's approval or rejection of a plan."""

    PINNED = "pinned"
    APPROVED = "approved"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Approval(Document):
    """Somebody's decision about one plan of a target.

    Attributes:
        target: the tuned target, as its workload names it.
        mode: "inference" or "training".
        hardware: the machines it holds for, as `Environment.hardware` names them.
        plan: the plan it is about.
        standing: run this plan and no other, permit it, or forbid it.
        by: the author.
        reason: in the author's words, may be empty.
        at: seconds since the epoch. 0 has the store use its own clock.
    """

    target: str
    mode: str
    hardware: str
    plan: Plan
    standing: Standing
    by: str
    reason: str = ""
    at: Amount = 0.0
    schema: str = APPROVAL_SCHEMA

    def describe(self, plan: str = "it") -> str:
        """Return such as "bob pinned it: the tail latency is better"."""
        said = f"{self.by} {self.standing} {plan}"
        return f"{said}: {self.reason}" if self.reason else said
