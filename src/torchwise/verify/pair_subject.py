"""A pair to judge, and the findings on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchwise.plan.requirements import Property
from torchwise.records import Check, CheckName
from torchwise.records.pair import PairCase
from torchwise.verify.input_cases import Case, describe_inputs
from torchwise.verify.witness import Witness


@dataclass(frozen=True, slots=True)
class PairSubject:
    """A reference, a candidate, and the rules by which they are compared.

    Attributes:
        reference: the callable that is right.
        witness: the candidate.
        floor: the reference at the candidate's precision.
        precision: the precision that the candidate may compute in.
        tolerance: the relative error that each output may have, for a candidate of other operators, or None.
        training: whether gradients are compared, too.
        stochastic: whether answers are random, or None to find out.
        properties: further promises to check.
        shares_weights: whether the candidate takes over the reference's weights, if it has the same ones.
    """

    reference: Callable[..., Any]
    witness: Witness
    floor: Callable[..., Any]
    precision: str = "native"
    tolerance: float | None = None
    training: bool = False
    stochastic: bool | None = None
    properties: frozenset[Property] = frozenset()
    shares_weights: bool = True


@dataclass(slots=True)
class PairFindings:
    """The checks that were made, the cases that were tried, and the case that fails."""

    checks: list[Check] = field(default_factory=list)
    cases: list[PairCase] = field(default_factory=list)
    failing: Case | None = None
    notes: list[str] = field(default_factory=list)


PASSED = {
    CheckName.LATE_WORK: "no output changes after its call",
    CheckName.MEMORY: "the answers are the same with all memory full of NaN",
    CheckName.REPEATED_CALLS: "other values in the same memory, and old ones again, are answered right",
}
"""What the checks of each case say if none fails."""


def describe_place(case: Case) -> str:
    """Return a case's name and its inputs."""
    return f"{case.name} ({describe_inputs(case.example)})"


def make_case_record(case: Case, check: Check) -> PairCase:
    """Return what a report tells of a case."""
    return PairCase(case.name, describe_inputs(case.example), check.outcome, check.detail, check.error, check.floor)
