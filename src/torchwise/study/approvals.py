"""Approvals, pins and rejections of a study's plans: checked before they are stored, and found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.records import Approval, Standing, Study

if TYPE_CHECKING:
    from torchwise.store import Storage


def make_approval(study: Study, plan: Plan, standing: Standing, *, by: str, reason: str = "") -> Approval:
    """Return an approval of a plan of `study`, for its target, mode and hardware.

    Raises:
        InputError: it has no author, or the study did not try or verify the plan.
    """
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
