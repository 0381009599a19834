"""The host: the time of a call in which no kernel runs."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings, make_estimate
from torchwise.plan import Plan
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.records import format as show
from torchwise.records.explanation import Finding, Saving

MIN_SHARE = 0.10
"""Share of a call from which waiting for the host is reported."""


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find a call in which the device waits for the host."""
    execution = evidence.execution
    if execution.host_share < MIN_SHARE or evidence.base.capture != "none" or evidence.base.mode in CUDA_GRAPH_MODES:
        return
    idle = max(
        execution.call_s.mid * execution.host_share - execution.guards_s, 0.0
    )  # guards have a saving of their own
    on_gpu = evidence.device == "cuda"
    launches = sum(kernel.calls for kernel in evidence.kernels)
    plan = evidence.captured
    yield Finding(
        "host-bound",
        f"in {execution.host_share:.0%} of a call no kernel runs",
        f"The host launches {launches:,.0f} kernels one by one, and the GPU waits for it."
        if on_gpu
        else f"Python, dispatch and guards around {launches:,.0f} kernels take "
        f"{show.seconds(execution.call_s.mid * execution.host_share)} of each call.",
        _describe_fix(plan)
        if on_gpu
        else "give it more work in each call, such as a larger batch, or remove the guards and graph breaks",
        _estimate_saving(evidence, savings, plan, idle),
        plan=plan,
    )


def _describe_fix(plan: Plan | None) -> str:
    if plan is None:
        return "give it more work in each call, such as a larger batch, or reduce the number of kernels"
    if plan.capture == "branches":
        return "the plan captures the call in several CUDA graphs, split where Python reads a value from the GPU"
    return "the plan captures the whole call in one CUDA graph, which the host replays in one launch"


def _estimate_saving(evidence: Evidence, savings: Savings, plan: Plan | None, idle: float) -> Saving:
    if plan is not None and (saving := savings.measure_plan(plan)):
        return saving
    busy = "GPU" if evidence.device == "cuda" else "kernels"
    return make_estimate(
        0.0, idle / 2, idle, f"at most the time of a call beyond that of its {busy} and guards can be saved"
    )
