"""One request to bisect."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import InputError, is_positive
from torchwise.plan import EAGER, Plan, check_is_plan
from torchwise.records.bisection import Symptom
from torchwise.trial import ProcessSettings
from torchwise.workload import WorkloadSpec

LIMIT_S = 300.0
"""Seconds for one look: what compiles for longer counts as a hang."""
AUTO = "auto"
_NO_FAULTS = (Symptom.NONE, Symptom.NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """One request to bisect.

    Attributes:
        workload: what is looked at.
        what: the symptom that is looked for, or "auto" for whichever there is but "slow".
        plan: a plan of Torchwise to bisect; `EAGER` for plain `torch.compile`.
        limit_s: seconds after which one look is ended, and counts as a hang.
        budget_s: seconds after which no further look starts; None for no limit.
        repro: file to write the repro to, .py; None for no repro.
        source: file with a live Python model, written by this very run; None to load the target.
        settings: of the user's process; None for PyTorch's own defaults.
    """

    workload: WorkloadSpec
    what: str = AUTO
    plan: Plan = EAGER
    limit_s: float = LIMIT_S
    budget_s: float | None = None
    repro: str | None = None
    source: str | None = None
    settings: ProcessSettings | None = None

    def __post_init__(self) -> None:
        known = [AUTO, *(symptom.value for symptom in Symptom if symptom not in _NO_FAULTS)]
        if self.what not in known:
            raise InputError(f"what is {self.what!r}, but must be one of {', '.join(known)}")
        check_is_plan(self.plan)
        for name in ("limit_s", "budget_s"):
            value = getattr(self, name)
            if value is not None and not is_positive(value):
                raise InputError(f"{name.removesuffix('_s')} is {value!r} s, but must be above 0")
        if self.repro is not None and not self.repro.endswith(".py"):
            raise InputError(f"the repro is {self.repro!r}, but must be a .py file")

    def wants(self, symptom: Symptom) -> bool:
        """Whether this symptom is what is looked for.

        A slow-down is looked for only where it is asked for: a small function is slow under any compiler.
        """
        return self.what == symptom.value or (self.what == AUTO and symptom not in (*_NO_FAULTS, Symptom.SLOW))

    @property
    def compares(self) -> bool:
        """Whether the answers must be compared to tell what is looked for; a crash shows without."""
        return self.what in (AUTO, Symptom.WRONG, Symptom.NAN)
