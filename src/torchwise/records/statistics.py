"""Intervals from raw samples: what measuring stops by, what deciding compares, what reports show.

Here, below everything that uses it, so that no two places can derive different numbers from the same samples.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic with its 95 % confidence interval."""

    low: float
    mid: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval relative to its middle: 0.02 reads "plus or minus 2 %"."""
        return (self.high - self.low) / 2 / abs(self.mid) if self.mid else float("inf")

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share any value."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        """Return such as "1.52 [1.49, 1.56]"."""
        return f"{self.mid:.3g} [{self.low:.3g}, {self.high:.3g}]"


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of `samples` with its percentile-bootstrap interval.

    Resampling is seeded, so that the same samples always give the same interval. With fewer than three samples
    the interval is their range.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    return _median_interval(tuple(samples))


@functools.lru_cache(maxsize=2048)
def _median_interval(samples: tuple[float, ...]) -> Interval:
    """Work out an interval once: a bootstrap takes milliseconds, and records are asked for theirs again and again."""
    values = np.asarray(samples, dtype=float)
    if values.size == 0:
        raise ValueError("samples is empty, but a median needs at least one")
    mid = float(np.median(values))
    if values.size < 3:
        return Interval(float(values.min()), mid, float(values.max()))
    draws = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(float(low), mid, float(high))


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Return the median of the paired ratios numerator[i] / denominator[i] with its interval.

    Pairs were measured next to each other in time, so that a drift of the machine's speed cancels.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if top.shape != bottom.shape:
        raise ValueError(f"{top.size} and {bottom.size} samples, but pairs need as many of one as of the other")
    return median_interval((top / bottom).tolist())
