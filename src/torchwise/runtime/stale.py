"""Whether a decision holds for a model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise import environment
from torchwise.records import Decision
from torchwise.workload.identity import structure


def stale_because(model: Callable[..., Any], decision: Decision) -> str | None:
    """Return what a decision was made for and differs here, or None where it holds."""
    if different := decision.environment.differences(environment.detect(decision.environment.device)):
        return "; ".join(different)
    if structure(model) != decision.structure:
        return "the model's code, mode or structure of weights is another"
    return None
