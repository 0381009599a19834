"""What became of the calls of a served plan, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torchwise.realize.backends.inductor import compiled_graphs
from torchwise.realize.capture.frozen import captured_graphs
from torchwise.runtime.latency import Histogram

STAYS = "the decision is to stay with eager"
"""Why the original answers where eager was decided for."""


@dataclass(slots=True)
class Statistics:
    """What became of the calls so far.

    Counts are exact for calls that follow one another; calls of several threads at once may be missed now and then, as
    a lock on every call would cost more than the counts are worth.

    Attributes:
        optimized: calls that the plan answered.
        reasons: calls that the original answered, by reason, without those that `stayed`.
        stayed: calls that the original answered because the decision is to stay with eager: a plain number, as next to
            nothing may stand before a call that a plan does not make faster (`benchmarks/dispatch.py`).
        failures: failures of the plan, by the type of the error; the original answered those calls.
        opened: how often failures closed the way to the plan, for a time or for good.
        compared: calls that were also answered by the original, to compare.
        mismatched: those of them in which the answers differed.
        recompiles: calls that the plan had answered before, and for which something was compiled or captured anew, as
            something else than the inputs varied.
        first_calls: calls by which something was compiled or captured.
        first_calls_s: the seconds that these took.
        latency: durations of a sample of the plan's calls; on a GPU, of the work there.
        at_freeze: graphs that were compiled and captured in this process when the plan was frozen; None where it is
            not.
    """

    optimized: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    stayed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    opened: int = 0
    compared: int = 0
    mismatched: int = 0
    recompiles: int = 0
    first_calls: int = 0
    first_calls_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    at_freeze: tuple[int, int] | None = None

    @property
    def original(self) -> Counter[str]:
        """Calls that the original answered, by reason."""
        found = self.reasons.copy()  # at once, while other threads count
        if self.stayed:
            found[STAYS] += self.stayed
        return found

    @property
    def calls(self) -> int:
        """All calls so far."""
        return self.optimized + self.stayed + sum(self.reasons.values())

    @property
    def fallback_rate(self) -> float:
        """The share of all calls that the original answered though a plan was to, 0 to 1; 0 before the first."""
        return 1 - (self.optimized + self.stayed) / self.calls if self.calls else 0.0

    @property
    def compiles(self) -> int | None:
        """Graphs that PyTorch compiled in this process, for whatever, since the freeze; None where there is none."""
        return compiled_graphs() - self.at_freeze[0] if self.at_freeze else None

    @property
    def captures(self) -> int | None:
        """CUDA graphs that were recorded in this process, for whatever, since the freeze; None where there is none."""
        return captured_graphs() - self.at_freeze[1] if self.at_freeze else None

    def freeze(self) -> None:
        """Count what is compiled and captured from now on, unless that is counted already."""
        self.at_freeze = self.at_freeze or (compiled_graphs(), captured_graphs())

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
            "recompiles": self.recompiles,
            "first_calls": self.first_calls,
            "first_calls_s": self.first_calls_s,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "latency": {
                "calls": sum(self.latency.counts),
                "p50_s": self.latency.quantile(0.5),
                "p99_s": self.latency.quantile(0.99),
            },
        }
