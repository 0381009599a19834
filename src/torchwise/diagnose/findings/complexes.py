"""Complex numbers: Inductor generates no code for them, and runs each operator on them as eager does."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings
from torchwise.records.explanation import Finding


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find operators on complex numbers that were left to eager."""
    base, left = evidence.base, sum(evidence.code.fallbacks.values())
    if not evidence.observed.complex_operators or not left or base.is_eager or "complex_to_real" in base.transforms:
        return
    if (plan := evidence.with_choice("transforms", "complex_to_real")) is None:  # such as with dynamic shapes
        return
    names = ", ".join(f"{times} {name}" for name, times in evidence.code.fallbacks.most_common(4))
    yield Finding(
        "complex",
        f"{left} operators on complex numbers run as in eager",
        f"Inductor generates no code for complex numbers, so that nothing is fused across them: {names}.",
        "the plan's complex_to_real carries them as real and imaginary parts; by hand, write the two parts out",
        prices.measure_plan(plan),
        plan=plan,
    )
