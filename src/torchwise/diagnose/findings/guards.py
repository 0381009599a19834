"""Guards: the checks on every call before compiled code may run."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import COMPILED, Evidence, Savings
from torchwise.records.explanation import Finding, SourceLocation

MIN_SHARE = 0.005
"""Share of a call below which a saving is not reported."""
MIN_PROFILED_SHARE = 0.01
"""Share of a call that guards must take under the profiler, which lengthens them, before a fix is tried."""


WITH_THE_PLAN = (
    "torchwise.apply with this plan: it checks a signature and a cheaper guard of the module instead, which notice "
    "every change that the guards would"
)
WITHOUT_GUARDS = (
    'compile with options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe} if the modules '
    "never change. A change would go unnoticed"
)


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find guards that can be left out: safely with a plan if that is faster, or else at the user's risk."""
    execution = evidence.execution
    if (
        evidence.plan is not None
        or not execution.guards
        or execution.guards_s < MIN_PROFILED_SHARE * execution.call_s.mid
    ):
        return
    plan = None if evidence.watched.breaks else COMPILED  # with graph breaks, a plan keeps the guards
    saving = savings.measure_plan(plan) if plan else None
    if saving is None or saving.per_call_s.low <= 0:  # checking every module may cost as much as the guards
        plan, saving = None, savings.measure_without_guards()
    if saving is None or saving.per_call_s.high <= MIN_SHARE * execution.call_s.mid:
        return
    most = max(evidence.watched.compilations, key=lambda one: one.guards)
    yield Finding(
        "guards",
        f"{execution.guards:,} guards are checked on every call",
        "torch.compile checks on each call whether the module, its weights' shapes and the globals that it read have "
        f"changed since it compiled. {most.guards:,} of the guards belong to {most.function}.",
        WITH_THE_PLAN if plan else WITHOUT_GUARDS,
        saving,
        (SourceLocation(most.file, most.line, most.function),),
        plan,
    )
