"""Torchwise itself, which runs its decision as for a user, with the checks on every call.

Approvals of plans are ignored, since benchmarks must not depend on a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.bench.contenders.contender import Setting
from torchwise.errors import StalePlanError
from torchwise.workload import Workload


class Torchwise:
    """The decision of `torchwise.tune`."""

    name = "torchwise"

    def missing(self, setting: Setting) -> str | None:  # noqa: ARG002 - the search reports missing requirements
        """Return None."""
        return None

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Apply the decision.

        Raises:
            StalePlanError: the decision is for another model.
        """
        from torchwise.records import Decision
        from torchwise.runtime import stale_because
        from torchwise.runtime.api import wrap_model

        decision, model = Decision.from_json(setting.decision), workload.step or workload.call
        if stale := stale_because(model, decision):
            raise StalePlanError(f"the decision is stale ({stale}): tune again")
        return wrap_model(model, decision)


def check_served(call: Callable[..., Any]) -> None:
    """Check that the plan ran every call, so that the timings are the plan's. Other contenders have no plan."""
    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep

    if not isinstance(call, (OptimizedModule, OptimizedFunction, OptimizedStep)) or call.decision.plan.is_eager:
        return
    if sentences := call.statistics.sentences:
        raise StalePlanError(f"the original model ran instead of the plan: {', '.join(sentences.values())}")
