"""What can cost time, one file a kind: each looks at the evidence, and asks for the price of its mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torchwise.diagnose.findings import (
    breaks,
    complexes,
    fallbacks,
    guards,
    host,
    recompiles,
    rnn,
    roofline,
    slower,
    waits,
)
from torchwise.diagnose.findings.evidence import Evidence, Prices
from torchwise.records.explanation import Basis, Finding

__all__ = ["Evidence", "Prices", "find"]

SEEN: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    slower.find,
    fallbacks.find,
    roofline.find,
)
"""These know their price from what was seen."""
TRIED: tuple[Callable[[Evidence, Prices], Iterator[Finding]], ...] = (
    recompiles.find_given_up,
    complexes.find,
    rnn.find,
    breaks.find,
    guards.find,
    host.find,
    waits.find,
    recompiles.find_repeated,
)
"""These have a mend tried, in the order in which they spend the budget: what gains most comes first."""


def find(evidence: Evidence, prices: Prices) -> list[Finding]:
    """Return everything that is found."""
    seen = [finding for finder in SEEN for finding in finder(evidence)]
    return seen + [_honest(finding) for finder in TRIED for finding in finder(evidence, prices)]


def _honest(finding: Finding) -> Finding:
    """Recommend nothing that was timed without a gain; those that try several fixes say so of each."""
    price = finding.price
    if finding.tried or price is None or price.basis is not Basis.MEASURED or price.per_call_s.low > 0 or price.once_s:
        return finding
    return replace(finding, mend=f"What was tried saves nothing that shows here: {finding.mend}")
