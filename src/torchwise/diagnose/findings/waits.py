"""Lines at which the host waits for data of the device, so that capture and fusion end there."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings, make_estimate
from torchwise.diagnose.op_trace import Wait
from torchwise.plan import Plan
from torchwise.records.explanation import Finding, Saving


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find each line once.

    If a graph break lies on the same line, its finding has the saving.
    """
    plan = _static(evidence) or _find_capture_plan(evidence, savings)
    broken = {(one.file, one.line) for one in evidence.watched.breaks}
    for wait in evidence.observed.waits:
        yield Finding(
            "synchronisation",
            f"the host waits for data: {wait.what}" + (f", {wait.times} times in a call" if wait.times > 1 else ""),
            "The program reads a tensor's value here, so the host waits for the device. A CUDA graph cannot "
            "contain that.",
            _describe_fix(plan),
            _estimate_saving(evidence, savings, wait, plan, (wait.place.file, wait.place.line) in broken),
            (wait.place,),
            plan,
        )


def _static(evidence: Evidence) -> Plan | None:
    if not evidence.has_static_form or "static_form" in evidence.base.transforms:
        return None
    return evidence.with_choice("transforms", "static_form")


def _find_capture_plan(evidence: Evidence, savings: Savings) -> Plan | None:
    """Return the plan that captures the call around its waits, if there is one and it ran."""
    plan = evidence.captured
    if plan is None or not (plan.capture == "branches" or "numbers_on_gpu" in plan.transforms):
        return None
    return plan if savings.measure_plan(plan) else None


def _describe_fix(plan: Plan | None) -> str:
    by_hand = "keep the decision on the device, with torch.where or a mask of fixed size, or remove it"
    if plan is None:
        return by_hand
    if "static_form" in plan.transforms:
        return "the plan's static_form uses the model's own form without this wait"
    if plan.capture == "branches":
        return f"the plan captures the code between these reads, once per branch. Or {by_hand}"
    return (
        "the plan's numbers_on_gpu keeps the number on the GPU and captures the call, without compiling it. Or compute "
        "with the tensor"
    )


def _estimate_saving(
    evidence: Evidence, savings: Savings, wait: Wait, plan: Plan | None, broken: bool
) -> Saving | None:
    if plan is not None and (saving := savings.measure_plan(plan)):
        return saving
    if evidence.device == "cpu":
        reason = "the graph break there has the saving" if broken else "the device is the host itself"
        return make_estimate(0.0, 0.0, 0.0, f"the wait itself is short on a CPU: {reason}")
    idle = evidence.execution.call_s.mid * evidence.execution.host_share
    share = wait.times / max(sum(one.times for one in evidence.observed.waits), 1)
    return make_estimate(0.0, idle * share / 2, idle * share, "a share of the time in which the GPU is idle")
