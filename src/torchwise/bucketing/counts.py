"""Counts of calls by size and bucket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counts:
    """Calls by size and bucket so far. Counts are exact for sequential calls, as in `Statistics`.

    Attributes:
        calls: calls by bucket.
        sizes: calls by size. Sizes beyond the largest bucket are rounded up to a power of two, so that the counts stay
            small.
        beyond: calls beyond the largest bucket, which the original answers.
        padding: total padding, in units of the size.
        computed: total computed size of the calls, with padding, in the same units.
        compiles: graphs that PyTorch compiled in this process since the freeze, or None before it.
        captures: CUDA graphs that were recorded in this process since the freeze, or None before it.
        first_calls: calls that compiled or captured something since the freeze, or None before it.
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
        """The padded share of the computed sizes, 0 to 1, or 0 before the first call."""
        return self.padding / self.computed if self.computed else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, for logging or sending."""
        return {
            "calls_by_bucket": dict(self.calls),
            "beyond": self.beyond,
            "padded_share": self.padded_share,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "first_calls_since_freeze": self.first_calls,
        }
