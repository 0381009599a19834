"""Whether a candidate gives the right answer, check by check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchwise.errors import InputError

STRIDES = "strides"
"""The check that fails if an answer has eager's structure, dtypes and shapes, but another memory layout."""


class Outcome(StrEnum):
    """Result of verification. NOT_COMPARABLE is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Check:
    """One property that was checked.

    Attributes:
        name: such as "values", "held outputs", "distribution".
        outcome: the result.
        detail: a sentence with the place and the figures.
        error: error of the candidate against the reference, relative (root mean square), or None if it has none.
        floor: the same error of eager at the candidate's precision: the noise floor.
    """

    name: str
    outcome: Outcome
    detail: str
    error: float | None = None
    floor: float | None = None

    def check_read(self) -> None:
        """Refuse errors below 0. An error that is not finite is kept in a store.

        Raises:
            InputError: an error is below 0.
        """
        for name, value in (("error", self.error), ("floor", self.floor)):
            if value is not None and value < 0:
                raise InputError(f"{name} is {value}, but must be at least 0")


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one candidate."""

    checks: tuple[Check, ...]

    @property
    def outcome(self) -> Outcome:
        """FAIL if any check failed, else NOT_COMPARABLE if any could not be made or none was, else PASS."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.FAIL in outcomes:
            return Outcome.FAIL
        if Outcome.NOT_COMPARABLE in outcomes or not outcomes:
            return Outcome.NOT_COMPARABLE
        return Outcome.PASS

    @property
    def reason(self) -> str:
        """The first check that speaks against the candidate, or how many passed."""
        for outcome in (Outcome.FAIL, Outcome.NOT_COMPARABLE):
            for check in self.checks:
                if check.outcome is outcome:
                    return f"{check.name}: {check.detail}"
        return f"{len(self.checks)} checks passed"

    @property
    def error(self) -> float | None:
        """The largest relative error against the reference among the checks."""
        return max((check.error for check in self.checks if check.error is not None), default=None)
