"""Kernels that take far longer than this hardware needs for their work."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, make_estimate
from torchwise.records.explanation import Finding

MIN_SHARE = 0.10
"""Share of a call that a kernel must take to be reported."""
FAR = 0.5
"""Share of the roofline from which a kernel is near enough."""
MAX_COUNT = 3


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find the longest kernels that are far from the roofline."""
    call_s, count = evidence.execution.call_s.mid, 0
    for kernel in evidence.kernels:
        part = kernel.seconds / call_s
        slow = kernel.share is not None and kernel.share < FAR and part >= MIN_SHARE
        if not slow or count == MAX_COUNT or kernel.share is None:
            continue
        count += 1
        most = kernel.seconds * (1 - kernel.share)
        yield Finding(
            "roofline",
            f"{kernel.name} reaches {kernel.share:.0%} of this hardware's peak",
            f"It takes {part:.0%} of a call in {kernel.calls:.3g} "
            f"launch{'es' * (round(kernel.calls) != 1)}. Small kernels do not fill the machine, and a library's kernel "
            "may not suit the shape.",
            "try larger batches, another memory format or lower precision: torchwise tune times them"
            if not kernel.generated
            else "run torchwise tune with --effort thorough, which times the compiler's own tuning of it",
            make_estimate(0.0, most / 4, most, "at most its time beyond the roofline can be saved"),
        )
