"""Intervals from raw samples: what measuring stops by, what deciding compares, what reports show.

Here, below everything that uses it, so that no two places can derive different numbers from the same samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchwise.errors import InputError

CONFIDENCE = 0.95
RESAMPLES = 2000
MOST_RESAMPLES = 100_000
"""A bootstrap of a ratio takes about ten milliseconds with so many."""
FEW = 10
"""Samples below which the percentiles of a bootstrap hold less than they promise."""
MAX_HALF_WIDTH = 0.25
"""Relative half-width beyond which an interval names no figure: its middle may be off by a quarter or more."""
BEYOND = 10
"""Resamples wanted beyond each end of an interval: with fewer, its ends would be noise."""


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

    @property
    def is_usable(self) -> bool:
        """Whether the interval is narrow enough that its middle may be quoted, ranked and drawn."""
        return self.low > 0 and self.half_width <= MAX_HALF_WIDTH

    def check_read(self) -> None:
        """Refuse ends that are not in order.

        Raises:
            InputError: they are not.
        """
        if self.low > self.mid or self.mid > self.high:
            raise InputError(f"an interval is {self.low}, {self.mid}, {self.high}, but must be low, middle and high")

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share any value."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        """Return such as "1.52 [1.49, 1.56]"; the ends alone where the middle is no figure."""
        if self.low != self.high and not self.is_usable:
            return f"between {self.low:.3g} and {self.high:.3g}"
        return f"{self.mid:.3g} [{self.low:.3g}, {self.high:.3g}]"


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of `samples` with its percentile-bootstrap interval.

    Resampling is seeded, so that the same samples always give the same interval. Of fewer than ten samples the
    interval is that of the sign test, which holds whatever they are distributed like; of fewer than six that is their
    range, which holds less: 94 % of five, 75 % of three.

    Sources: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; David & Nagaraja, Order
    Statistics (2003), section 7.1.
    """
    return _median_interval(tuple(samples))


@functools.lru_cache(maxsize=2048)
def _median_interval(samples: tuple[float, ...]) -> Interval:
    """Work out an interval once: a bootstrap takes milliseconds, and records are asked for theirs again and again."""
    values = np.asarray(samples, dtype=float)
    if values.size == 0:
        raise ValueError("samples is empty, but a median needs at least one")
    mid = float(np.median(values))
    if values.size < FEW:
        ordered, skipped = np.sort(values), _skipped(values.size)
        return Interval(float(ordered[skipped]), mid, float(ordered[-1 - skipped]))
    draws = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(float(low), mid, float(high))


def _skipped(count: int) -> int:
    """Return how many samples lie beyond each end of the sign test's interval: so few that more would be too many."""
    below, skipped = 0.5**count, 0  # the chance that the median lies below all samples
    while 2 * (below := below + math.comb(count, skipped + 1) * 0.5**count) <= 1 - CONFIDENCE:
        skipped += 1
    return skipped


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Return the median of the paired ratios numerator[i] / denominator[i] with its interval.

    Pairs were measured next to each other in time, so that a drift of the machine's speed cancels.
    """
    top, bottom = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if top.shape != bottom.shape:
        raise ValueError(f"{top.size} and {bottom.size} samples, but pairs need as many of one as of the other")
    return median_interval((top / bottom).tolist())


def unpaired_ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """Return the median of `numerator` over that of `denominator`, with its percentile-bootstrap interval.

    For samples of two runs, which share no rounds; so what differs from run to run is not in the interval. Each side is
    resampled by itself, seeded. With fewer than three samples on a side, that side's range stands for its resamples.

    Args:
        numerator: samples above 0.
        denominator: samples above 0, any number of them.
        confidence: of the interval, above 0 and below 1: of k intervals that must hold together each takes
            1 - 0.05 / k (Bonferroni).

    Raises:
        ValueError: a side has no samples, or the confidence is out of its range.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, but must be above 0 and below 1")
    tail = (1 - confidence) / 2
    count = int(min(max(RESAMPLES, BEYOND / tail), MOST_RESAMPLES))
    rng = np.random.default_rng(0)
    top, bottom = (_resampled_medians(side, count, rng) for side in (numerator, denominator))
    low, high = np.quantile(top / bottom, (tail, 1 - tail))
    mid = float(np.median(numerator) / np.median(denominator))
    return Interval(min(float(low), mid), mid, max(float(high), mid))


def _resampled_medians(samples: Sequence[float], count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the medians of `count` resamples, without drawing the resamples.

    The k-th smallest of n draws from the samples is the sample at the k-th smallest of n uniform positions, and that is
    Beta(k, n + 1 - k) distributed; given it, the next lies Beta(1, n - k) of the way on to 1 (David & Nagaraja, Order
    Statistics, 2003, sections 2.3 and 2.5).
    """
    values = np.sort(np.asarray(samples, dtype=float))
    n = values.size
    if n == 0:
        raise ValueError("samples is empty, but a median needs at least one")
    if n < 3:
        ends: np.ndarray = rng.choice(values, count)
        return ends
    k = (n + 1) // 2
    position = rng.beta(k, n + 1 - k, count)
    lower = values[(position * n).astype(int)]
    if n % 2:
        return np.asarray(lower)
    following = position + (1 - position) * rng.beta(1, n - k, count)
    return np.asarray((lower + values[np.minimum((following * n).astype(int), n - 1)]) / 2)
