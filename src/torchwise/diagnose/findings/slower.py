"""A run that is no faster than the model left alone."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence
from torchwise.plan import EAGER
from torchwise.records.explanation import Basis, Finding, Price
from torchwise.records.statistics import median_interval


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find a run that is slower than eager, with its whole interval."""
    measured = evidence.measurement
    if measured.speedup.high >= 1 or evidence.base.is_eager:
        return
    saved = median_interval([a - b for a, b in zip(measured.candidate_s, measured.baseline_s, strict=True)])
    yield Finding(
        "slower than eager",
        f"compiled, it takes {1 / measured.speedup.mid:.2f} times as long as left alone",
        "What compiling saves here is less than what guards, dispatch and the generated code's own start cost.",
        "leave it alone, or mend what else is found here",
        Price(saved, Basis.MEASURED, "timed in alternation with eager"),
        plan=EAGER,
    )
