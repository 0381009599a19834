"""A run that is slower than the original model in eager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchwise.diagnose.findings.evidence import Evidence
from torchwise.diagnose.relative_saving import share_saved_anywhere
from torchwise.plan import EAGER
from torchwise.records.compile_events import UncompiledKind
from torchwise.records.explanation import Finding, make_saving


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find a run whose whole interval of speed-ups over eager lies below 1."""
    measurement = evidence.measurement
    if measurement.speedup.high >= 1 or not measurement.speedup.is_usable or evidence.base.is_eager:
        return
    swapped = replace(measurement, candidate_s=measurement.baseline_s, baseline_s=measurement.candidate_s)
    in_eager = any(one.kind is UncompiledKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    yield Finding(
        "slower than eager",
        f"compiled, it takes {1 / measurement.speedup.mid:.2f} times as long as in eager",
        "It was compiled too often, so PyTorch runs it in eager for good, after checking the guards of every version."
        if in_eager
        else "Guards, dispatch and the start of the generated code take longer here than compiling saves.",
        "keep it from being compiled again, or run it in eager"
        if in_eager
        else "run it in eager, or fix the other findings first",
        make_saving(share_saved_anywhere(swapped), evidence.execution.call_s.mid, "timed in alternation with eager"),
        plan=EAGER,
    )
