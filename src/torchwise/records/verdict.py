"""Whether a candidate gives the right answer, check by check."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.errors import InputError
from torchwise.former_names import OpenEnum
from torchwise.plan.requirements import Property


class Outcome(StrEnum):
    """Result of verification. NOT_COMPARABLE is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_COMPARABLE = "not comparable"


class CheckName(OpenEnum):
    """The checks of a candidate."""

    STRUCTURE = "structure"
    """Containers, types, dtypes, shapes, strides and shared memory are eager's."""
    STRIDES = "strides"
    """An output has eager's structure, dtype and shape, but another memory layout. It is never passed."""
    VALUES = "values"
    """Values are no further from the reference than eager's."""
    REPRODUCED_NOISE = "reproduced noise"
    """The candidate cannot draw eager's random numbers, so that only their distribution is compared."""
    DISTRIBUTION = "distribution"
    """Answers of a stochastic model have eager's distribution."""
    INDEPENDENCE = "independence"
    """Successive answers of a stochastic model vary as eager's."""
    SUBSTITUTION = "substitution"
    """Operators in place of the model's own change the output, or the user's metric, by no more than is allowed."""
    RETAINED_OUTPUTS = "held outputs"
    """Outputs stay as they are while later calls are made."""
    FIRST_CALL = "first call"
    """The first call, which compiles, answers as later ones do."""
    GRADIENT_STRUCTURE = "gradients' structure"
    """Gradients of a training step have eager's types, dtypes and shapes."""
    GRADIENTS = "gradients"
    """Gradients of a training step are no further from the reference than eager's."""
    GRADIENT_SCALE = "gradients' scale"
    """Gradients of a training step are as large as the reference's."""
    STATE = "state"
    """Parameters, buffers and the optimizer's state are right after a few steps."""
    RETAINED_LOSS = "held loss"
    """A loss stays as it is while later steps are taken."""
    LOSS_CURVES = "trajectories"
    """The losses of several seeds go the way of eager's."""
    WEIGHTS = "weights"
    """The plain model has the candidate's loss with the weights that the candidate trained."""
    DETERMINISTIC = Property.DETERMINISTIC.value
    BATCH_INVARIANT = Property.BATCH_INVARIANT.value
    BITWISE = Property.BITWISE.value
    ANSWER = "answer"
    """A pair's candidate answers where the reference does, in time and without an error."""
    REPEATED_CALLS = "repeated calls"
    """A pair's candidate answers new values in the same memory, and old values again, as if it were its first call."""
    LATE_WORK = "late work"
    """Nothing that a pair's candidate returned changes after the call."""
    MEMORY = "uninitialised memory"
    """A pair's candidate gives the same answer if all memory that it allocates holds NaN."""
    SURROUNDINGS = "surroundings"
    """A pair's candidate leaves timers, PyTorch's functions and settings, and random numbers as they are."""
    TIMED_ANSWERS = "timed answers"
    """A pair's candidate still answers right after it was timed, and computes each answer anew."""


class CheckCause(OpenEnum):
    """Causes of a check's outcome that Torchwise acts on."""

    NOT_FINITE = "not finite"
    """The candidate has infinities or NaN where eager or the reference has none, or other ones."""
    NONE_IN_EAGER = "none in eager"
    """The candidate returns a value, or a gradient, where eager returns None."""
    NOISE_NOT_REPRODUCIBLE = "noise not reproducible"
    """The candidate draws other random numbers than eager from the same seed."""
    HIDDEN_BY_ROUNDING = "hidden by rounding"
    """Rounding moves eager by so much that a wrong answer would look the same."""


class Figure(OpenEnum):
    """The figures of a check besides its errors. A figure that does not apply, or is not finite, is left out."""

    LIMIT = "limit"
    """The largest error that passes, relative like the error itself."""
    SAMPLES = "samples"
    """How many were compared: values, draws of the inputs, calls, or seeds."""
    STEPS = "steps"
    """Training steps in each sample."""
    HALF_WIDTH = "half_width"
    """Half the width of the error's confidence interval."""
    TESTS = "tests"
    """How many statistical tests were made."""
    P_VALUE = "p_value"
    """The p-value of the test that fails."""
    LEVEL = "level"
    """The p-value below which a test fails, or the false-alarm rate of all tests."""
    FIRST_LOSS = "first_loss"
    """The candidate's loss at the first step, averaged over the seeds."""
    LAST_LOSS = "last_loss"
    """The same at the last step."""
    METRIC_LOST = "metric_lost"
    """The share of the user's metric that is lost, or 0 if it gains."""
    DIFFERING = "differing"
    """Elements with other bits, where bits are compared."""


@dataclass(frozen=True, slots=True)
class Check:
    """One property that was checked.

    Attributes:
        name: the property.
        outcome: the result.
        detail: a sentence for people, with the place and the figures. Nothing reads it but people.
        error: error of the candidate against the reference, relative (root mean square), or None if it has none.
        floor: the same error of eager at the candidate's precision: the noise floor.
        cause: why it ended so, if that is a cause that Torchwise acts on.
        figures: its other figures.
    """

    name: CheckName
    outcome: Outcome
    detail: str
    error: float | None = None
    floor: float | None = None
    cause: CheckCause | None = None
    figures: dict[Figure, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Leave out figures that are not finite, which JSON cannot hold."""
        if not all(map(math.isfinite, self.figures.values())):
            finite = {figure: value for figure, value in self.figures.items() if math.isfinite(value)}
            object.__setattr__(self, "figures", finite)

    @property
    def is_noise_unreproducible(self) -> bool:
        """Whether it shows that the candidate draws other random numbers than eager from the same seed.

        Records of earlier versions say so by the name alone.
        """
        return self.cause == CheckCause.NOISE_NOT_REPRODUCIBLE or self.name == CheckName.REPRODUCED_NOISE

    @property
    def lacks_property(self) -> bool:
        """Whether it shows that a right plan lacks a required property of its answers' bits."""
        return self.outcome is not Outcome.PASS and str(self.name) in list(map(str, Property))

    def describe_loss(self) -> str:
        """Return such as "the loss goes from 2.31 to 0.4", or "" for a check that trained nothing."""
        if not {Figure.FIRST_LOSS, Figure.LAST_LOSS} <= self.figures.keys():
            return ""
        return f"the loss goes from {self.figures[Figure.FIRST_LOSS]:.4g} to {self.figures[Figure.LAST_LOSS]:.4g}"

    def check_read(self) -> None:
        """Raise an InputError for errors below 0. An error that is not finite is kept in a store."""
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
    def lacks_property_alone(self) -> bool:
        """Whether the answers are right, but the plan lacks a property that the user requires."""
        against = [check for check in self.checks if check.outcome is not Outcome.PASS]
        return bool(against) and all(check.lacks_property for check in against)

    @property
    def is_hidden_by_rounding(self) -> bool:
        """Whether nothing speaks against the candidate but that rounding would hide a wrong answer."""
        against = [check for check in self.checks if check.outcome is not Outcome.PASS]
        return bool(against) and all(
            check.cause == CheckCause.HIDDEN_BY_ROUNDING and check.outcome is Outcome.NOT_COMPARABLE
            for check in against
        )

    @property
    def reason(self) -> str:
        """The first check that speaks against the candidate, or how many passed."""
        for outcome in (Outcome.FAIL, Outcome.NOT_COMPARABLE):
            for check in self.checks:
                if check.outcome is outcome:
                    return f"{check.name}: {check.detail}"
        return f"{len(self.checks)} checks passed"

    @property
    def is_change_refused(self) -> bool:
        """Whether operators or numbers in place of the model's own change it by more than the user allows.

        The same holds for them in every plan. If a plan was compared further, it is the rest of it that failed.
        """
        failed = any(check.name == CheckName.SUBSTITUTION and check.outcome is Outcome.FAIL for check in self.checks)
        return failed and all(check.name == CheckName.SUBSTITUTION for check in self.checks)

    @property
    def error(self) -> float | None:
        """The largest relative error against the reference among the checks."""
        return max((check.error for check in self.checks if check.error is not None), default=None)


def compare_processes(digest: str, other: str) -> Check:
    """Compare digests of the bits of answers that two processes gave to equal inputs."""
    if digest == other:
        return Check(CheckName.DETERMINISTIC, Outcome.PASS, "another process gives equal bits")
    return Check(CheckName.DETERMINISTIC, Outcome.FAIL, "another process gives other bits on equal inputs")
