"""Complex numbers: Inductor generates no code for them, and runs each operator on them in eager."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings
from torchwise.records.explanation import Finding


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find operators on complex numbers that run in eager."""
    base, left = evidence.base, sum(evidence.code.fallbacks.values())
    if not evidence.observed.complex_operators or not left or base.is_eager or "complex_to_real" in base.transforms:
        return
    if (plan := evidence.with_choice("transforms", "complex_to_real")) is None:  # such as with dynamic shapes
        return
    names = ", ".join(f"{times} {name}" for name, times in evidence.code.fallbacks.most_common(4))
    yield Finding(
        "complex",
        f"{left} operators on complex numbers run in eager",
        f"Inductor generates no code for complex numbers, so nothing is fused across these operators: {names}.",
        "the plan's complex_to_real computes with their real and imaginary parts. By hand, write the two parts out",
        savings.measure_plan(plan),
        plan=plan,
    )
