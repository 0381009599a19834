"""Torchwise itself: its decision, applied as a user applies it, checks on every call included."""

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
        from torchwise.api import apply
        from torchwise.records import Decision

        decision = Decision.from_json(setting.decision)
        if workload.step:
            return apply(workload.step, decision, strict=True)
        return apply(workload.call, decision, strict=True)


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
