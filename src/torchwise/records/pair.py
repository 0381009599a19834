"""The verdict on a candidate in place of a reference: its checks, its cases, and the smallest inputs that fail."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.environment import Environment
from torchwise.records.codec import Document
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import Seconds
from torchwise.records.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class PairCase:
    """One set of inputs, and what came of it.

    Attributes:
        name: what is special about it.
        inputs: the forms of the inputs.
        detail: the figures, or the difference.
        error: error of the candidate, relative, or None if there is none.
        floor: the reference's own error.
    """

    name: str
    inputs: str
    outcome: Outcome
    detail: str
    error: float | None = None
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class FailingInput:
    """The smallest inputs that were found to fail.

    Attributes:
        inputs: their forms.
        found_as: the inputs that failed first.
        detail: the difference.
        tried: how many inputs were tried on the way.
        repro: a program that shows the difference, or "" for none.
        confirmed: whether the program was run in a fresh process, and showed the difference.
    """

    inputs: str
    found_as: str
    detail: str
    tried: int
    repro: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class PairVerdict(Document):
    """Whether a candidate may take the place of a reference.

    Attributes:
        reference: its target.
        candidate: its target.
        environment: machine and software.
        verdict: all checks.
        cases: the inputs that were tried.
        failing: the smallest inputs that fail, if any do.
        measurement: the candidate timed against the reference, if that was asked for and it is right.
        notes: what could not be compared, and why.
        seconds: total wall time.
    """

    reference: str
    candidate: str
    environment: Environment
    verdict: Verdict
    cases: tuple[PairCase, ...] = ()
    failing: FailingInput | None = None
    measurement: Measurement | None = None
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    schema: str = "torchwise.pair/1"

    def __repr__(self) -> str:
        return f"<PairVerdict on {self.candidate}: {self.verdict.outcome}, {self.verdict.reason}>"

    @property
    def is_equal(self) -> bool:
        """Whether the candidate passed every check."""
        return self.verdict.outcome is Outcome.PASS
