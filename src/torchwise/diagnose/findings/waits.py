"""Places at which the host waits for data of the device, and where capture and fusion stop."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings, make_estimate
from torchwise.diagnose.op_trace import Wait
from torchwise.plan import Plan
from torchwise.records.explanation import Finding, Saving


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find each place once.

    If a break lies on the same line, its finding has the saving.
    """
    plan = _static(evidence) or _find_capture_plan(evidence, prices)
    broken = {(one.file, one.line) for one in evidence.watched.breaks}
    for wait in evidence.observed.waits:
        yield Finding(
            "synchronisation",
            f"the host waits for data: {wait.what}" + (f", {wait.times} times in a call" if wait.times > 1 else ""),
            "The program goes on by what is in a tensor, so that the device must have finished first; no CUDA graph "
            "can hold that.",
            _describe_fix(plan),
            _estimate_saving(evidence, prices, wait, plan, (wait.place.file, wait.place.line) in broken),
            (wait.place,),
            plan,
        )


def _static(evidence: Evidence) -> Plan | None:
    if not evidence.has_static_form or "static_form" in evidence.base.transforms:
        return None
    return evidence.with_choice("transforms", "static_form")


def _find_capture_plan(evidence: Evidence, prices: Savings) -> Plan | None:
    """Return the plan that captures the call around its waits, if there is one and it was seen to run."""
    plan = evidence.captured
    if plan is None or not (plan.capture == "branches" or "numbers_on_gpu" in plan.transforms):
        return None
    return plan if prices.measure_plan(plan) else None


def _describe_fix(plan: Plan | None) -> str:
    by_hand = "keep the decision on the device, with torch.where or a mask of fixed size, or take it out"
    if plan is None:
        return by_hand
    if "static_form" in plan.transforms:
        return "the plan's static_form is the model's own form without it"
    if plan.capture == "branches":
        return f"the plan captures what lies between the questions, for each way that the answers lead; or {by_hand}"
    return (
        "the plan's numbers_on_gpu leaves the number where it is and captures the call, which is not compiled then; or "
        "compute with the tensor"
    )


def _estimate_saving(evidence: Evidence, prices: Savings, wait: Wait, plan: Plan | None, broken: bool) -> Saving | None:
    if plan is not None and (price := prices.measure_plan(plan)):
        return price
    if evidence.device == "cpu":
        at_break = "it breaks the graph, and is priced there" if broken else "the device is the host itself"
        return make_estimate(0.0, 0.0, 0.0, f"nothing waits for long on a CPU: {at_break}")
    idle = evidence.execution.call_s.mid * evidence.execution.host_share
    share = wait.times / max(sum(one.times for one in evidence.observed.waits), 1)
    return make_estimate(0.0, idle * share / 2, idle * share, "a share of the time in which the GPU has nothing to do")
