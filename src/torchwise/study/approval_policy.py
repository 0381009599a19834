"""The plans that the approvals for a target permit, and the person behind each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise.plan import Plan
from torchwise.records import Approval, Decision, Standing

if TYPE_CHECKING:
    from torchwise.store import Storage


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The approvals for one target, mode and hardware."""

    approvals: Sequence[Approval]

    @classmethod
    def from_storage(cls, decision: Decision, storage: Storage) -> ApprovalPolicy:
        """Read the approvals that apply to a decision."""
        workload = decision.workload
        return cls(storage.approvals(workload.target, workload.mode, decision.environment.hardware))

    @property
    def pin(self) -> Approval | None:
        """The pin, if there is one."""
        return next(iter(self._select_by_standing(Standing.PINNED)), None)

    @property
    def name_plans(self) -> bool:
        """Whether somebody named permitted plans, and not only forbidden ones."""
        return self.pin is not None or bool(self._select_by_standing(Standing.APPROVED))

    def find_refusal(self, plan: Plan) -> str | None:
        """Return whose approval forbids a plan, and why, in words, or None if it is permitted."""
        if self.pin is not None:
            return None if self.pin.plan == plan else self.pin.describe(str(self.pin.plan))
        if plan.is_eager:
            return None
        if rejection := self.rejection(plan):
            return rejection.describe()
        approvals = self._select_by_standing(Standing.APPROVED)
        if not approvals or any(approval.plan == plan for approval in approvals):
            return None
        return f"it is not approved, while {approvals[0].describe(str(approvals[0].plan))}"

    def rejection(self, plan: Plan) -> Approval | None:
        """Return the approval that rejects this very plan, if there is one."""
        return next(
            (approval for approval in self._select_by_standing(Standing.REJECTED) if approval.plan == plan), None
        )

    def _select_by_standing(self, standing: Standing) -> list[Approval]:
        return [approval for approval in self.approvals if approval.standing is standing]
