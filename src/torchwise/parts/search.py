"""Finding a plan for one part, and whether what was found is worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchwise.parts.config import CompileConfig
from torchwise.records import Decision
from torchwise.workload import Example

Find = Callable[[Callable[..., Any], Sequence[Example], CompileConfig], Decision]
"""Decides how a callable should run on such inputs; `training` of the config is settled."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        optimized: what answers by the plan; None where the original goes on.
        reason: why.
        decision: None where the search failed.
        error: what the search failed with.
        seconds: of the search.
    """

    optimized: Callable[..., Any] | None
    reason: str
    decision: Decision | None = None
    error: Exception | None = None
    seconds: float = 0.0


def by_evidence(original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
    """Tune in processes of their own, and wait for it.

    Raises:
        InputError: the part or its inputs cannot be sent to a worker.
        BaselineError: the part raises in a worker, on inputs that it answered here.
    """
    from torchwise.api import tune

    return tune(
        original,
        examples=examples,
        calls=config.calls,
        restarts=config.restarts,
        allow=config.allow,
        effort=config.effort,
        budget=config.budget_s,
        mode="training" if config.training else "inference",
        plans=config.plans,
        store=config.store,
        progress=config.progress,
    ).decision


def judged(original: Callable[..., Any], decision: Decision, config: CompileConfig) -> Found:
    """Apply a decision where it is surely worth what the config asks for."""
    from torchwise.api import apply

    speedup = decision.speedup
    if decision.plan.is_eager:
        return Found(None, decision.reason, decision)
    if speedup is None or speedup.low < config.minimum_speedup:
        reason = (
            f"{decision.plan} is {speedup} times as fast, surely less than minimum_speedup {config.minimum_speedup}"
        )
        return Found(None, reason, decision)
    return Found(apply(original, decision, store=config.store), decision.reason, decision)
