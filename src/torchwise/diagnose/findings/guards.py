"""Guards: what is checked on every call before compiled code may answer it."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import COMPILED, Evidence, Prices
from torchwise.records.explanation import Finding, Place

LEAST_SHARE = 0.005
"""Share of a call below which a saving is not worth a line."""


def find(evidence: Evidence, prices: Prices) -> Iterator[Finding]:
    """Find guards that can be left out, by calling the same code with and without them."""
    if evidence.plan is not None or not evidence.execution.guards:
        return
    breaks = bool(evidence.watched.breaks)
    price = prices.without_guards() if breaks else prices.of_plan(COMPILED) or prices.without_guards()
    if price is None or price.per_call_s.high <= LEAST_SHARE * evidence.execution.call_s.mid:
        return
    most = max(evidence.watched.compilations, key=lambda one: one.guards)
    yield Finding(
        "guards",
        f"{evidence.execution.guards:,} guards are checked on every call",
        "torch.compile asks anew on each call whether the module, its weights' shapes and the globals that it read are "
        f"as they were when it compiled; {most.guards:,} of the guards are those of {most.function}.",
        'compile with options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe} where the '
        "modules never change"
        if breaks
        else "torchwise.apply with this plan: a signature and a watch over the module are asked instead, which notice "
        "every change that the guards would",
        price,
        (Place(most.file, most.line, most.function),),
        None if breaks else COMPILED,
    )
