"""Recompilations: what was compiled did not hold for another call, and seconds went into doing it again."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence
from torchwise.records import Interval
from torchwise.records.explanation import Basis, Finding, Place, Price
from torchwise.records.watched import FallbackKind


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find what was compiled again over the given inputs, and what was given up for it."""
    limited = any(one.kind is FallbackKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    seconds = {one.compile_id: one.seconds for one in evidence.watched.compilations if one.is_forward}
    told: set[str] = set()
    for one in evidence.watched.recompiles:
        again = sum(seconds.get(name, 0.0) for name in one.compile_ids if name not in told)
        told.update(one.compile_ids)  # several guards may have failed at once
        yield Finding(
            "recompile",
            f"{one.function} was compiled again {one.count} time{'s' * (one.count != 1)}"
            + (", until PyTorch gave up and ran it in eager" if limited else ""),
            f"{one.varies or 'what it was compiled for changed'} (the guard that failed: {one.guard})",
            "mark what varies, with torch._dynamo.mark_dynamic(tensor, dimension) or torch.compile(dynamic=True), or "
            "keep it constant; torchwise.shapes pads to a few sizes",
            Price(
                Interval(0.0, 0.0, 0.0),
                Basis.MEASURED,
                "seconds of compiling again, once in each process; a steady call costs the same",
                again,
            ),
            (Place(one.file, one.line, one.function), *(Place(f.file, f.line, f.function) for f in one.stack[-1:])),
        )
