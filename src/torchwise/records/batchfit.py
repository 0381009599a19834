"""How large a batch may be: what was tried, what fitted, and what got most done."""

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
        size: of the batch.
        samples_per_s: what gets done at this size; None where it failed.
        peak_memory: bytes at the peak of a call, beyond what is held before it; None where it is not known.
        problem: why it does not fit; empty where it does.
    """

    size: Positive
    samples_per_s: Amount | None = None
    peak_memory: Count | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BatchFit(Document):
    """What came of looking for a batch size.

    Attributes:
        target: what was run.
        plan: how.
        tried: every size that was tried, in order of size.
        memory_limit: bytes that a call might take; None for what the device has.
    """

    target: str
    plan: Plan
    tried: tuple[SizeTried, ...]
    memory_limit: Count | None = None
    schema: str = SCHEMA

    @property
    def largest(self) -> int | None:
        """The largest size that fitted; None where none did."""
        return max((one.size for one in self.tried if not one.problem), default=None)

    @property
    def best(self) -> int | None:
        """The size that fitted and got most done in a second; None where none did."""
        fitting = [one for one in self.tried if not one.problem and one.samples_per_s is not None]
        return max(fitting, key=lambda one: one.samples_per_s or 0.0).size if fitting else None
