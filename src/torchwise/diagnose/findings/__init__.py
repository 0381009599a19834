"""Possible causes of lost time, one file each: a finder reads the evidence, and has the saving of its fix measured."""

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

FROM_EVIDENCE: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    slower.find,
    fallbacks.find,
    roofline.find,
)
"""These take their saving from the evidence."""
FROM_TRIALS: tuple[Callable[[Evidence, Savings], Iterator[Finding]], ...] = (
    recompiles.find_recompile_limits,
    complexes.find,
    rnn.find,
    breaks.find,
    guards.find,
    host.find,
    waits.find,
    recompiles.find_repeated,
)
"""These have a fix tried, in the order in which they spend the budget: the largest savings come first."""
BY_TIME = (slower.find, roofline.find, host.find)
"""These depend on times alone, and are left out if the call could not be timed."""


def find(evidence: Evidence, savings: Savings) -> list[Finding]:
    """Return all findings.

    No saving exceeds the call, and none is claimed without a measurement.
    """
    call_s, trust = evidence.execution.call_s.mid, judge_measurement(evidence.measurement)
    is_timed = trust.reliability is not Reliability.UNUSABLE
    found = [finding for finder in FROM_EVIDENCE if is_timed or finder not in BY_TIME for finding in finder(evidence)]
    for finder in FROM_TRIALS:
        if is_timed or finder not in BY_TIME:
            found += finder(evidence, savings)
    return [withhold_advice(settle(finding, call_s, trust)) for finding in found]


def withhold_advice(finding: Finding) -> Finding:
    """Mark the advice whose timing showed no gain."""
    saving = finding.saving
    if saving is None or saving.basis is Basis.ESTIMATED or saving.answer is Answer.YES or saving.once_s:
        return finding
    is_certain = saving.answer is not Answer.INCONCLUSIVE
    lead = "Tried, and no saving was measured" if is_certain else "Not recommended, as no gain could be measured"
    return replace(finding, fix=f"{lead}: {finding.fix}")
