"""Operators that run in eager, although they involve no complex numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, make_estimate
from torchwise.records.compile_events import UncompiledKind, UncompiledPart
from torchwise.records.explanation import Finding, Kernel, Saving

MIN_SHARE = 0.02
_EXPECTED = re.compile(r"aten\.(\w*(convolution|attention|fft|embedding_bag|sort|pool)\w*|(add|badd)?b?mm|(add)?mv)$")
"""Operators that are expected to run a library's kernels."""
_OWN_FINDINGS = (UncompiledKind.COMPLEX, UncompiledKind.RECOMPILE_LIMIT)
"""Kinds that have findings of their own."""


def find(evidence: Evidence) -> Iterator[Finding]:
    """Find fallbacks in generated code, and everything that PyTorch did not compile or capture."""
    if not evidence.observed.complex_operators:
        for name, times in evidence.code.fallbacks.items():
            if not _EXPECTED.match(name) and (saving := _estimate_saving(name, evidence)):
                yield Finding(
                    "fallback",
                    f"{name} runs in eager, {times} time{'s' * (times > 1)} in a call",
                    "Inductor generates no code for it here, so nothing is fused across it.",
                    "write it with operators that Inductor generates code for, if the saving justifies that",
                    saving,
                )
    for one in evidence.watched.fallbacks:
        if one.kind not in _OWN_FINDINGS and not _is_covered_by_break(one, evidence):
            yield Finding(
                "fallback",
                f"{one.kind.value.replace('_', ' ')}: {one.what}",
                "PyTorch fell back without an error, and with little or no warning.",
                "run torchwise tune, which tries the alternatives",
            )


def _is_covered_by_break(part: UncompiledPart, evidence: Evidence) -> bool:
    """Return whether a function is left uncompiled because of a break that has a finding of its own."""
    return part.kind is UncompiledKind.WHOLE_FUNCTION and any(
        one.whole and one.where == part.graph_break for one in evidence.watched.breaks
    )


def _estimate_saving(name: str, evidence: Evidence) -> Saving | None:
    kernel = _kernel(name, evidence.kernels)
    if kernel is None or kernel.seconds < MIN_SHARE * evidence.execution.call_s.mid:
        return None
    return make_estimate(0.0, kernel.seconds / 2, kernel.seconds, "at most its whole time can be saved")


def _kernel(name: str, kernels: tuple[Kernel, ...]) -> Kernel | None:
    operator = name.replace("aten.", "aten::").partition(".")[0]
    return next((kernel for kernel in kernels if kernel.name == operator), None)
