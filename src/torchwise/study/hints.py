"""Plans to begin a search with: those decided for under this target elsewhere, or before a change."""

from __future__ import annotations

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.plan.known_names import find_unusable_part
from torchwise.plan.space import numerics_of
from torchwise.records import Decision, Inspection
from torchwise.records.listener import Listener
from torchwise.records.structure_differences import OTHER_WEIGHTS, another_model
from torchwise.store import Storage
from torchwise.study.request import Request
from torchwise.study.samplers import Proposal


def list_hints(
    request: Request, inspection: Inspection, storage: Storage, here: Environment, listener: Listener
) -> list[Proposal]:
    """Return the plans of stale decisions for this target. They are verified again, as all plans are."""
    hints: dict[Plan, Proposal] = {}
    for decision in storage.decisions(target=request.workload.target):
        if decision.plan in hints or decision.plan.is_eager or not _is_open(decision.plan, request):
            continue
        if why := _find_change(decision, inspection, here):
            reason = f"decided for before, and stale ({why}): verified again"
            listener.note(f"{decision.plan} was {reason}")
            hints[decision.plan] = Proposal(decision.plan, reason)
    return list(hints.values())


def _find_change(decision: Decision, inspection: Inspection, here: Environment) -> str | None:
    if different := decision.list_changes(here):
        return different[0]
    if decision.structure != inspection.structure:
        return another_model(decision.structure_details, inspection.structure_details)
    changed = OTHER_WEIGHTS if decision.weights not in ("", inspection.weights) else "the inputs changed"
    return None if decision.identity == inspection.identity else changed


def _is_open(plan: Plan, request: Request) -> bool:
    return find_unusable_part(plan) is None and request.allow.allows(numerics_of(plan))
