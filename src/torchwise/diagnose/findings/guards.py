"""Guards: the checks on every call before compiled code may answer it."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import COMPILED, Evidence, Savings
from torchwise.records.explanation import Finding, SourceLocation

MIN_SHARE = 0.005
"""Share of a call below which a saving is not worth a line."""
MIN_SEEN = 0.01
"""Share of a call that guards must take under the profiler, which makes them longer, before a fix is tried."""


WITH_THE_PLAN = (
    "torchwise.apply with this plan: a signature and a watch over the module are asked instead, which notice every "
    "change that the guards would"
)
WITHOUT_GUARDS = (
    'compile with options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe} where the modules '
    "never change: nothing would notice it"
)


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find guards that can be left out: with a plan if that pays, as it is safe, or else by the user's promise."""
    seen = evidence.execution
    if evidence.plan is not None or not seen.guards or seen.guards_s < MIN_SEEN * seen.call_s.mid:
        return
    plan = None if evidence.watched.breaks else COMPILED  # a plan checks them all the same between broken graphs
    price = prices.measure_plan(plan) if plan else None
    if price is None or price.per_call_s.low <= 0:  # a visit to every module may cost as much as the guards
        plan, price = None, prices.measure_without_guards()
    if price is None or price.per_call_s.high <= MIN_SHARE * seen.call_s.mid:
        return
    most = max(evidence.watched.compilations, key=lambda one: one.guards)
    yield Finding(
        "guards",
        f"{seen.guards:,} guards are checked on every call",
        "torch.compile asks anew on each call whether the module, its weights' shapes and the globals that it read are "
        f"as they were when it compiled; {most.guards:,} of the guards are those of {most.function}.",
        WITH_THE_PLAN if plan else WITHOUT_GUARDS,
        price,
        (SourceLocation(most.file, most.line, most.function),),
        plan,
    )
