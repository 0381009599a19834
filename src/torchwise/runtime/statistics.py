"""What became of the calls of a served plan, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torchwise.runtime.latency import Histogram


@dataclass(slots=True)
class Statistics:
    """What became of the calls so far.

    Counts are exact for calls that follow one another; calls of several threads at once may be missed now and then, as
    a lock on every call would cost more than the counts are worth.

    Attributes:
        optimized: calls that the plan answered.
        original: calls that the original answered, by reason.
        failures: failures of the plan, by the type of the error; the original answered those calls.
        opened: how often failures closed the way to the plan, for a time or for good.
        compared: calls that were also answered by the original, to compare.
        mismatched: those of them in which the answers differed.
        first_calls: calls by which something was compiled or captured.
        first_calls_s: the seconds that these took.
        latency: durations of a sample of the plan's calls; on a GPU, of the work there.
    """

    optimized: int = 0
    original: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    opened: int = 0
    compared: int = 0
    mismatched: int = 0
    first_calls: int = 0
    first_calls_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)

    @property
    def calls(self) -> int:
        """All calls so far."""
        return self.optimized + sum(self.original.values())

    @property
    def fallback_rate(self) -> float:
        """The share of all calls that the original answered, 0 to 1; 0 before the first."""
        return 1 - self.optimized / self.calls if self.calls else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, to be logged or sent."""
        return {
            "calls": self.calls,
            "optimized": self.optimized,
            "original": dict(self.original),
            "fallback_rate": self.fallback_rate,
            "failures": dict(self.failures),
            "opened": self.opened,
            "compared": self.compared,
            "mismatched": self.mismatched,
            "first_calls": self.first_calls,
            "first_calls_s": self.first_calls_s,
            "latency": {
                "calls": sum(self.latency.counts),
                "p50_s": self.latency.quantile(0.5),
                "p99_s": self.latency.quantile(0.99),
            },
        }
