"""A run that is no faster than the model left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchwise.diagnose.findings.evidence import Evidence
from torchwise.diagnose.relative_saving import share_saved_anywhere
from torchwise.plan import EAGER
from torchwise.records.compile_events import FallbackKind
from torchwise.records.explanation import Finding, make_saving


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find a run that is slower than eager, with its whole interval."""
    measured = evidence.measurement
    if measured.speedup.high >= 1 or not measured.speedup.is_usable or evidence.base.is_eager:
        return
    without = replace(measured, candidate_s=measured.baseline_s, baseline_s=measured.candidate_s)
    given_up = any(one.kind is FallbackKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    yield Finding(
        "slower than eager",
        f"compiled, it takes {1 / measured.speedup.mid:.2f} times as long as left alone",
        "It was compiled too often, so that PyTorch runs it in eager for good, behind the guards of every version."
        if given_up
        else "What compiling saves here is less than what guards, dispatch and the generated code's own start cost.",
        "keep it from being compiled again, or leave it alone"
        if given_up
        else "leave it alone, or mend what else is found here",
        make_saving(share_saved_anywhere(without), evidence.execution.call_s.mid, "timed in alternation with eager"),
        plan=EAGER,
    )
