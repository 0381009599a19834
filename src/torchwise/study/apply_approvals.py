"""Approve, pin and reject plans, and apply that to decisions: from records alone, in any process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchwise.errors import InputError, RefusedPlanError
from torchwise.plan import EAGER, Numerics, Plan
from torchwise.records import Approval, Decision, Standing, Study, Trial
from torchwise.store.location import may_have_approvals

if TYPE_CHECKING:
    from torchwise.store import Storage


logger = logging.getLogger("torchwise")


@dataclass(frozen=True, slots=True)
class EffectiveDecision:
    """The decision in force.

    Attributes:
        decision: the plan to run, which is eager if there is a refusal.
        refusal: why no plan may run, in words, or None if the decision may.
    """

    decision: Decision
    refusal: str | None = None


def apply_stored_approvals(decision: Decision, store: str | None = None, *, strict: bool = False) -> EffectiveDecision:
    """Return the decision in force under the approvals in a store, which is read once, without waiting.

    If a store cannot be read, the log says so, and the decision holds unchanged. It also holds, without a message, if
    the file of the default store does not exist.

    Args:
        store: URL or file of the store, by default in the user's data directory.

    Raises:
        StorageError: with `strict`, the store cannot be read.
        RefusedPlanError: with `strict`, no verified plan is permitted.
    """
    try:
        found = _read_and_apply(decision, store)
    except Exception as error:  # a program must start with the store in any state
        if strict:
            raise
        logger.warning("torchwise: the decision holds, whatever was ruled about its plan: %s", error)
        return EffectiveDecision(decision)
    if found.refusal and strict:
        raise RefusedPlanError(
            f"{found.refusal}: torchwise plans approvals lists the approvals, and withdraw removes one"
        )
    if found.refusal:
        logger.warning("torchwise: %s, so the original answers", found.refusal)
    return found


def _read_and_apply(decision: Decision, store: str | None) -> EffectiveDecision:
    if not may_have_approvals(store, decision.workload.target):
        return EffectiveDecision(decision)
    from torchwise.store import read_storage

    storage = read_storage(store)
    if storage is None:
        return EffectiveDecision(decision)
    with storage:
        return apply_approvals(decision, storage)


def apply_approvals(decision: Decision, storage: Storage) -> EffectiveDecision:
    """Return the decision in force under the approvals for its target, mode and hardware.

    A pinned plan runs, and no other. Without a pin, an approved plan runs if there are approvals, and a rejected plan
    never does. Eager is permitted unless another plan is pinned. A forbidden plan is replaced by a new decision. It is
    made among the plans that a study of this very model, inputs, machine and software has verified. A pin is followed
    even if it does not pay.
    """
    rules = ApprovalPolicy.from_storage(decision, storage)
    why = rules.find_refusal(decision.plan)
    if why is None:
        return EffectiveDecision(decision)
    if rules.pin is not None and rules.pin.plan.is_eager:
        return EffectiveDecision(_eager(decision, f"Stay with eager: {rules.pin.describe()}."))
    for study in _studies(decision, storage, rules):
        verified = tuple(t for t in study.trials if t.is_verified and rules.find_refusal(t.plan) is None)
        if verified:
            return EffectiveDecision(_decide_again(decision, study, verified, rules, why))
    refusal = f"plan {decision.plan} is refused ({why}), and no permitted plan is verified here"
    return EffectiveDecision(_eager(decision, f"Stay with eager: {refusal}."), refusal)


def find_studies(decision: Decision, storage: Storage) -> list[Study]:
    """Return the studies of a decision's model, inputs, machine and software: its own first, and then the strictest."""
    from torchwise.store import StudyKey

    workload, fingerprint = decision.workload, decision.environment.fingerprint
    place = (workload.device, workload.mode, workload.objective)
    keys = [StudyKey(decision.identity, fingerprint, *place, allow.former_name) for allow in Numerics]
    stored = (storage.find_study(key, workload.target) for key in keys)
    return sorted(filter(None, stored), key=lambda study: study.decision != decision)


def _studies(decision: Decision, storage: Storage, rules: ApprovalPolicy) -> list[Study]:
    """Return the studies that may have verified a permitted plan.

    If nobody named plans, it is one study that tried the chosen plan, so that no other allows more than was requested.
    """
    found = find_studies(decision, storage)
    if rules.name_plans:
        return found
    return [study for study in found if any(trial.plan == decision.plan for trial in study.trials)][:1]


def _decide_again(
    decision: Decision, study: Study, verified: tuple[Trial, ...], rules: ApprovalPolicy, why: str
) -> Decision:
    """Decide among verified and permitted trials, or with a pin, for its plan."""
    from torchwise.study.decision import choose, decide
    from torchwise.study.history import History

    history = History(decision.workload, study.inspection, verified)
    if rules.pin is not None:
        trial, economics = verified[0], history.economics
        reason = f"Run {trial.plan}: {rules.pin.describe()}. It is verified, at {trial.speedup} times eager's speed."
        saved_s = economics.baseline_cost - economics.cost(trial).mid
        return replace(choose(decision, trial, economics, reason), saved_s=saved_s)
    fresh = decide(history, decision.environment)
    return replace(fresh, reason=f"{fresh.reason} Not {decision.plan}: {why}.")


def _eager(decision: Decision, reason: str) -> Decision:
    return replace(
        decision,
        plan=EAGER,
        reason=reason,
        speedup=None,
        break_even_calls=None,
        saved_s=0.0,
        cold_s=0.0,
        warm_s=None,
        error=None,
    )


def make_approval(study: Study, plan: Plan, standing: Standing, *, by: str, reason: str = "") -> Approval:
    """Return an approval of a plan of `study`, for its target, mode and hardware."""
    if not by.strip():
        raise InputError("by is empty, but an approval needs the name of a person")
    trial = next((trial for trial in study.trials if trial.plan == plan), None)
    if trial is None and not plan.is_eager:
        raise InputError(f"study {study.id} has not tried {plan}: torchwise tune --plan tries it")
    may_run = standing is not Standing.REJECTED
    if may_run and trial is not None and not plan.is_eager and not trial.is_verified:
        raise InputError(f"study {study.id} has not verified {plan} ({trial.reason}), so it can be rejected only")
    if plan.is_eager and standing is Standing.REJECTED:
        raise InputError("eager cannot be rejected: it answers whenever nothing else may; pin another plan instead")
    workload = study.workload
    return Approval(
        workload.target, workload.mode, study.environment.hardware, plan, standing, by.strip(), reason.strip()
    )


def find_approvals(study: Study, storage: Storage) -> list[Approval]:
    """Return the approvals for a study's target, and then those for other targets decided for its model and inputs.

    Such targets may share the study, which has the name of its last requested target. An approval keeps the
    name that the study had at its time.
    """
    decided = storage.decisions(identity=study.inspection.identity)
    targets = dict.fromkeys((study.workload.target, *(decision.workload.target for decision in decided)))
    place = (study.workload.mode, study.environment.hardware)
    return [approval for target in targets for approval in storage.approvals(target, *place)]


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
