"""The host: the time of a call in which no kernel runs."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings, make_estimate
from torchwise.plan import Plan
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.records.explanation import Finding, Saving
from torchwise.report import format as show

MIN_SHARE = 0.10
"""Share of a call from which waiting for the host is worth a line."""


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find a call that waits for its host."""
    seen = evidence.execution
    if seen.host_share < MIN_SHARE or evidence.base.capture != "none" or evidence.base.mode in CUDA_GRAPH_MODES:
        return
    idle = max(seen.call_s.mid * seen.host_share - seen.guards_s, 0.0)  # guards have a saving of their own
    on_gpu = evidence.device == "cuda"
    launches = sum(kernel.calls for kernel in evidence.kernels)
    plan = evidence.captured
    yield Finding(
        "host-bound",
        f"in {seen.host_share:.0%} of a call no kernel runs",
        f"{launches:,.0f} kernels are started one by one, which takes the host longer than the GPU needs."
        if on_gpu
        else f"Python, dispatch and guards around {launches:,.0f} kernels take "
        f"{show.seconds(seen.call_s.mid * seen.host_share)} of each call.",
        _describe_fix(plan)
        if on_gpu
        else "give it more work in each call, such as a larger batch, or take the guards and breaks away",
        _estimate_saving(evidence, prices, plan, idle),
        plan=plan,
    )


def _describe_fix(plan: Plan | None) -> str:
    if plan is None:
        return "give it more work in each call, such as a larger batch, or take the kernels' number down"
    if plan.capture == "branches":
        return "the plan captures the call in CUDA graphs, one from each question to the next, replayed without Python"
    return "the plan captures the whole call in one CUDA graph, which is replayed without the host"


def _estimate_saving(evidence: Evidence, prices: Savings, plan: Plan | None, idle: float) -> Saving:
    if plan is not None and (price := prices.measure_plan(plan)):
        return price
    kernels = "GPU" if evidence.device == "cuda" else "kernels"
    return make_estimate(
        0.0, idle / 2, idle, f"the time of a call less that of its {kernels} and guards is the most there is to save"
    )
