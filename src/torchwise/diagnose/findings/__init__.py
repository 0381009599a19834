"""Possible causes of lost time, one file each: every finder reads the evidence, and requests its fix's saving."""

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
from torchwise.diagnose.findings.evidence import Evidence, Savings
from torchwise.records.answer import Answer, Reliability
from torchwise.records.explanation import Basis, Finding, judge_measurement, settle

__all__ = ["Evidence", "Savings", "find", "withhold_advice"]

SEEN: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    slower.find,
    fallbacks.find,
    roofline.find,
)
"""These take their saving from the evidence."""
TRIED: tuple[Callable[[Evidence, Savings], Iterator[Finding]], ...] = (
    recompiles.find_recompile_limits,
    complexes.find,
    rnn.find,
    breaks.find,
    guards.find,
    host.find,
    waits.find,
    recompiles.find_repeated,
)
"""These have a fix tried, in the order in which they spend the budget: the largest gains come first."""
BY_TIME = (slower.find, roofline.find, host.find)
"""These find nothing but times, and so find nothing if the call could not be timed."""


def find(evidence: Evidence, prices: Savings) -> list[Finding]:
    """Return all findings.

    No saving exceeds the call, and none is claimed without a measurement.
    """
    call_s, trust = evidence.execution.call_s.mid, judge_measurement(evidence.measurement)
    is_timed = trust.reliability is not Reliability.UNUSABLE
    found = [finding for finder in SEEN if is_timed or finder not in BY_TIME for finding in finder(evidence)]
    for finder in TRIED:
        if is_timed or finder not in BY_TIME:
            found += finder(evidence, prices)
    return [withhold_advice(settle(finding, call_s, trust)) for finding in found]


def withhold_advice(finding: Finding) -> Finding:
    """Drop the advice whose timing showed no gain."""
    price = finding.saving
    if price is None or price.basis is Basis.ESTIMATED or price.answer is Answer.YES or price.once_s:
        return finding
    told = price.answer is not Answer.INCONCLUSIVE
    lead = "What was tried saves nothing that shows here" if told else "Not recommended, as no gain could be measured"
    return replace(finding, fix=f"{lead}: {finding.fix}")
