"""Decide from the evidence and from trials whether a call can be captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchwise.diagnose.findings.evidence import Evidence
from torchwise.plan import Plan
from torchwise.records.compile_events import UncompiledKind
from torchwise.records.explanation import Basis, Capturable, Finding

_STAYS = "the numbers that are read from the GPU can stay there (numbers_on_gpu)"


def capturable(evidence: Evidence, findings: Iterable[Finding], failures: Mapping[Plan | str, str]) -> Capturable:
    """Return whether the call can be captured, with every known obstacle.

    Args:
        evidence: of the run.
        findings: of the run. One of them may have tried the capture.
        failures: how the tried fixes failed, by plan. The texts do not name the plans.
    """
    reasons = [f"{wait.place}: {wait.what}" for wait in evidence.observed.waits]
    reasons += [one.what for one in evidence.watched.fallbacks if one.kind is UncompiledKind.CUDAGRAPH_SKIP]
    if evidence.device != "cuda":
        return Capturable(False if reasons else None, tuple(reasons) or ("there are no CUDA graphs on a CPU",))
    if evidence.base.capture == "call" or (evidence.base.capture == "branches" and not reasons):
        # The explained run is captured itself.
        return Capturable(True)
    plan = evidence.captured
    timed = {one.plan for one in findings if one.saving and one.saving.basis is not Basis.ESTIMATED}
    if plan is not None and plan.capture == "call" and plan in timed:
        return Capturable(True, (_STAYS,) if "numbers_on_gpu" in plan.transforms else tuple(reasons))
    if plan is not None and plan in failures:
        reasons.append(f"plan {plan}: {failures[plan]}")
    return Capturable(False if reasons else None, tuple(reasons))
