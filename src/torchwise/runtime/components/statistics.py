"""The statistics of one component of a program: who answered its calls, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchwise.records import Interval
from torchwise.records.shown import Shown
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.statistics import Statistics


@dataclass(frozen=True, slots=True)
class ComponentStatistics(Shown):
    """Statistics of a component, since it was registered or last cleared.

    Attributes:
        plan: the plan in use, or None if the original answers.
        reason: why that plan, or none, is in use, in a sentence.
        optimized: number of calls that the plan answered.
        original: number of calls that the original answered, by reason.
        sentences: the latest sentence for each of these reasons.
        speedup: the decision's speed-up, whether its plan was kept or not, or None if there is none.
        compile_s: seconds of the calls that compiled or captured the plan in this process.
        search_s: seconds of search.
        failures: number of failed searches and failed calls of the plan, by type of error.
        verified: whether the plan in use was verified, or None if no plan is in use.
        counts: all counts, as a module has them: latency, comparisons, compilations, and the share of fallbacks.
    """

    plan: str | None = None
    reason: str = "no search has run yet"
    optimized: int = 0
    original: Mapping[FallbackReason, int] = field(default_factory=dict)
    speedup: Interval | None = None
    compile_s: float = 0.0
    search_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    sentences: Mapping[FallbackReason, str] = field(default_factory=dict)
    verified: bool | None = None
    counts: Statistics = field(default_factory=Statistics)

    def __repr__(self) -> str:
        calls = f"{self.optimized} calls by {self.plan or 'no plan'}, {sum(self.original.values())} as written"
        return f"<ComponentStatistics: {calls}; {self.reason}>"

    def snapshot(self) -> dict[str, Any]:
        """Return the statistics as plain data, to be logged or sent."""
        speedup = None if self.speedup is None else (self.speedup.low, self.speedup.mid, self.speedup.high)
        own = {
            "plan": self.plan,
            "reason": self.reason,
            "verified": self.verified,
            "speedup": speedup,
            "search_s": self.search_s,
            "compile_s": self.compile_s,
        }
        return {**own, **self.counts.snapshot(), "failures": dict(self.failures)}


class Counted:
    """Base of objects that print as their name and their statistics."""

    def __repr__(self: Any) -> str:
        return f"<{type(self).__name__} {self.name}: {self.statistics!r}>"
