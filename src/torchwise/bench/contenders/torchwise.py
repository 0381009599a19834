"""Torchwise itself: its decision, running as it does for a user, checks on every call included.

What people ruled about plans is not asked for: the row is about what was measured, and a store of rulings that cannot
be reached must not cost it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.bench.contenders.contender import Setting
from torchwise.errors import StalePlanError
from torchwise.workload import Workload


class Torchwise:
    """What `torchwise.tune` decided for."""

    name = "torchwise"

    def missing(self, setting: Setting) -> str | None:  # noqa: ARG002 - the search itself says what it cannot do
        """Return None."""
        return None

    def build(self, workload: Workload, setting: Setting) -> Callable[..., Any]:
        """Apply the decision.

        Raises:
            StalePlanError: the model built here is not the one that was decided for.
        """
        from torchwise.api import wrapped
        from torchwise.records import Decision
        from torchwise.runtime import stale_because

        decision, model = Decision.from_json(setting.decision), workload.step or workload.call
        if stale := stale_because(model, decision):
            raise StalePlanError(f"the decision is stale ({stale}): tune again")
        return wrapped(model, decision)


def check_served(call: Callable[..., Any]) -> None:
    """Refuse figures that are not the plan's: nothing but the plan may have answered. Other contenders have no plan.

    Raises:
        StalePlanError: the original answered some calls.
    """
    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep

    if not isinstance(call, (OptimizedModule, OptimizedFunction, OptimizedStep)) or call.decision.plan.is_eager:
        return
    if refused := call.statistics.original:
        raise StalePlanError(f"the original answered instead of the plan: {', '.join(refused)}")
