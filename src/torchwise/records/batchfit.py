"""How large a batch may be: the sizes tried, those that fitted, and the one with the highest throughput."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.plan import Plan
from torchwise.records.bounds import Amount, Count, Positive
from torchwise.records.codec import Document

SCHEMA = "torchwise.batchfit/1"


@dataclass(frozen=True, slots=True)
class SizeTried:
    """One batch size.

    Attributes:
        size: batch size.
        samples_per_s: throughput at this size, or None if it failed.
        peak_memory: bytes at the peak of a call, beyond those held before it, or None if unknown.
        problem: why it does not fit, or empty if it does.
    """

    size: Positive
    samples_per_s: Amount | None = None
    peak_memory: Count | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BatchFit(Document):
    """Result of the search for a batch size.

    Attributes:
        target: the target that was run.
        plan: the plan that it ran with.
        tried: every size tried, smallest first.
        memory_limit: bytes that a call might take, or None for all that the device has.
    """

    target: str
    plan: Plan
    tried: tuple[SizeTried, ...]
    memory_limit: Count | None = None
    schema: str = SCHEMA

    @property
    def largest(self) -> int | None:
        """The largest size that fitted, or None if none did."""
        return max((one.size for one in self.tried if not one.problem), default=None)

    @property
    def best(self) -> int | None:
        """The size that fitted and had the highest throughput, or None if none did."""
        fitting = [one for one in self.tried if not one.problem and one.samples_per_s is not None]
        return max(fitting, key=lambda one: one.samples_per_s or 0.0).size if fitting else None
