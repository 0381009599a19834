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

        applied = apply(workload.call, Decision.from_json(setting.decision), strict=True)

        def call(*args: Any, **kwargs: Any) -> Any:
            return applied(*args, **kwargs)

        def check() -> None:
            refused = {why: n for why, n in applied.statistics.original.items() if not applied.decision.plan.is_eager}
            if refused:
                raise StalePlanError(f"the original answered instead of the plan: {', '.join(refused)}")

        call.check = check  # type: ignore[attr-defined]
        return call
