"""One request to bisect."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import InputError, is_positive
from torchwise.plan import EAGER, Plan, check_is_plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.bisection import Symptom
from torchwise.trial import ProcessSettings

LIMIT_S = 300.0
"""Seconds for one probe: anything that compiles for longer counts as a hang."""
AUTO = "auto"
_NO_FAULTS = (Symptom.NONE, Symptom.NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """One request to bisect.

    Attributes:
        workload: the model and its inputs.
        what: the symptom to find, or "auto" for any of them except "slow".
        plan: a plan of Torchwise to bisect, or `EAGER` for plain `torch.compile`.
        limit_s: seconds after which one probe is ended, and counts as a hang.
        budget_s: seconds after which no further probe starts, or None for no limit.
        repro: .py file to write the repro to, or None for no repro.
        source: file with a live Python model, written by this very run, or None to load the target.
        settings: PyTorch's settings in the user's process, or None for its defaults.
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
        """Return whether the user is looking for this symptom.

        A slow-down counts only on request: a small function is slow under any compiler.
        """
        return self.what == symptom.value or (self.what == AUTO and symptom not in (*_NO_FAULTS, Symptom.SLOW))

    @property
    def compares(self) -> bool:
        """Whether the answers must be compared to recognise the symptom.

        A crash needs no comparison.
        """
        return self.what in (AUTO, Symptom.WRONG, Symptom.NAN)
