"""Approvals of plans by people: pinned, approved or rejected, for a target on a kind of machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchwise.plan import Plan
from torchwise.records.codec import Document
from torchwise.records.statistics import Amount

SCHEMA = "torchwise.ruling/1"


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
    schema: str = SCHEMA

    def describe(self, plan: str = "it") -> str:
        """Return such as "bob pinned it: the tail latency is better"."""
        said = f"{self.by} {self.standing} {plan}"
        return f"{said}: {self.reason}" if self.reason else said
