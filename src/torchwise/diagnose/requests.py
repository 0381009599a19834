"""The request of a diagnosis: the run, and the plan that the user means."""

from __future__ import annotations

import re
from typing import Any

from torchwise.environment import default_device
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.plan.rules import list_allowed
from torchwise.plan.words import is_words, read_words
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision
from torchwise.workload import Workload
from torchwise.workload.target import device_of, name_of

DEFAULT = Plan(backend="inductor")
"""`torch.compile(model)`, as most people write it."""
_ID = re.compile(r"[0-9a-f]{12}")


def make_spec(
    model: Any, workload: Workload | None, device: str | None, plan: Plan | Decision | None = None, **options: Any
) -> WorkloadSpec:
    """Return the specification of the run, by default on the live workload's device, or on "cuda" if available.

    A training step is always run for training. A decision for sizes that vary is examined at those sizes, and its
    plan by the tolerance and the metric that it was judged by.
    """
    if isinstance(plan, Decision):
        asked = plan.workload
        options = {"tolerance": asked.tolerance, "metric": asked.metric, **options}
        if asked.varying:
            options = {**options, "sizes": asked.sizes, "varying": asked.varying}
    if workload is not None and workload.step:
        options = {**options, "mode": "training"}
    device_name = device or (device_of(workload) if workload else default_device())
    return WorkloadSpec(name_of(model), device=device_name, **options)  # type: ignore[arg-type]


def plan_of(plan: Plan | Decision | str | None, store: str | None = None) -> Plan:
    """Return the plan that the user means, as `choice_of` reads it."""
    chosen = choice_of(plan, store)
    return chosen.plan if isinstance(chosen, Decision) else chosen


def choice_of(plan: Plan | Decision | str | None, store: str | None = None) -> Plan | Decision:
    """Return the plan that the user means, or the decision that chose it, if one did.

    Args:
        plan: a plan, a decision, a plan's words, such as "eager" or "inductor + freezing", a mode of `torch.compile`, a
            plan as JSON, or the id of a plan that a decision in the store chose. None stands for the default of
            `torch.compile`.
        store: URL or file of the store, by default in the user's data directory.
    """
    if plan is None:
        return DEFAULT
    if isinstance(plan, (Plan, Decision)):
        return plan
    if plan in list_allowed("mode"):
        return Plan(backend="inductor", mode=plan)
    if is_words(plan):
        return read_words(plan)
    if plan.lstrip().startswith("{"):
        return Plan.from_json(plan)
    if is_id(plan):
        return _find_decision(plan, store)
    raise InputError(
        f"plan is {plan!r}, but must be a plan's words, such as eager or 'inductor + freezing', a mode of "
        f"torch.compile ({', '.join(list_allowed('mode'))}), a plan as JSON, or the id of a decided plan (12 "
        "hex digits)"
    )


def is_id(text: str) -> bool:
    """Return whether the text looks like the id of a plan."""
    return _ID.fullmatch(text) is not None


def _find_decision(plan_id: str, store: str | None) -> Decision:
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        for decision in storage.decisions():
            if decision.plan.id == plan_id:
                return decision
    raise InputError(f"no decision in this store chose a plan with id {plan_id}: list them with `torchwise plans list`")
