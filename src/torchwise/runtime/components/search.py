"""Find a plan for one component, and decide whether to keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchwise.records import Decision
from torchwise.runtime.components.config import CompileConfig
from torchwise.workload import Example

if TYPE_CHECKING:
    from torchwise.runtime.fallback_reason import Fallback

Find = Callable[[Callable[..., Any], Sequence[Example], CompileConfig], Decision]
"""Decides how to run a callable on such inputs. The config's `training` is already resolved."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        optimized: the callable that runs by the plan, or None if the original keeps answering.
        reason: why the plan is used or not, in a sentence.
        fallback: why the original answers instead, or None if the plan answers.
        decision: the decision, or None if the search failed.
        error: the search's error, or None.
        seconds: duration of the search.
    """

    optimized: Callable[..., Any] | None
    reason: str
    fallback: Fallback | None = None
    decision: Decision | None = None
    error: Exception | None = None
    seconds: float = 0.0


def tune_in_workers(original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
    """Tune in worker processes, and wait for the decision.

    Raises:
        InputError: the component or its inputs cannot be sent to a worker.
        BaselineError: the component raises in a worker, on inputs that it answered here.
    """
    from torchwise.runtime.api import tune

    keywords = config.tune_keywords()
    keywords["examples"] = examples
    return tune(original, **keywords).decision


def apply_if_faster(original: Callable[..., Any], decision: Decision, config: CompileConfig) -> Found:
    """Apply a decision if its speed-up surely reaches the config's minimum."""
    from torchwise.runtime.api import apply
    from torchwise.runtime.fallback_reason import Fallback, FallbackReason

    speedup = decision.speedup
    if decision.plan.is_eager:
        return Found(None, decision.reason, Fallback(FallbackReason.EAGER_DECISION), decision)
    if speedup is None or speedup.low < config.minimum_speedup:
        reason = (
            f"{decision.plan} is {speedup} times as fast, surely less than minimum_speedup {config.minimum_speedup}"
        )
        return Found(None, reason, Fallback(FallbackReason.NOT_FAST_ENOUGH, f"{speedup}"), decision)
    return Found(apply(original, decision, store=config.store), decision.reason, decision=decision)
