"""What became of the sizes that came, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counts:
    """Calls by size and bucket so far; exact for calls that follow one another, like `Statistics`.

    Attributes:
        calls: calls that went to a bucket.
        sizes: sizes that came; those beyond the largest bucket are rounded up to a power of two, so that what is kept
            does not grow with the calls.
        beyond: calls larger than the largest bucket, which the original answers.
        padding: what was added to calls, in units of the size.
        computed: what was computed for the calls, padding included, in the same units.
        compiles: graphs that PyTorch compiled in this process since the freeze; None before it.
        captures: CUDA graphs that were recorded in this process since the freeze; None before it.
        first_calls: calls by which something was compiled or captured since the freeze; None before it.
    """

    calls: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    beyond: int = 0
    padding: int = 0
    computed: int = 0
    compiles: int | None = None
    captures: int | None = None
    first_calls: int | None = None

    @property
    def padded_share(self) -> float:
        """The share of what was computed that is padding, 0 to 1; 0 before the first call."""
        return self.padding / self.computed if self.computed else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, to be logged or sent."""
        return {
            "calls_by_bucket": dict(self.calls),
            "beyond": self.beyond,
            "padded_share": self.padded_share,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "first_calls_since_freeze": self.first_calls,
        }
