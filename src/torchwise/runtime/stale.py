"""Whether a decision holds for a model on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise import environment
from torchwise.records import Decision
from torchwise.workload.differences import another_model, packed
from torchwise.workload.identity import structure
from torchwise.workload.structure_details import details_of


def stale_because(model: Callable[..., Any], decision: Decision) -> str | None:
    """Return what a decision was made for and differs here, or None where it holds."""
    if different := decision.environment.differences(environment.detect(decision.environment.device)):
        return "; ".join(different)
    if structure(model) != decision.structure:
        return another_model(decision.structure_details, packed(details_of(model)))
    return None
