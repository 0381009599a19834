"""Intervals from raw samples, and types for the numbers in records' fields, whose bounds are checked on reading.

They stand here, below everything that uses them, so that no two places derive different numbers from the same samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import numpy as np
from msgspec import Meta

from torchwise.errors import InputError

CONFIDENCE = 0.95
RESAMPLES = 2000
FEW = 10
"""Number of samples below which the percentiles of a bootstrap hold less than they promise."""
MAX_HALF_WIDTH = 0.25
"""Relative half-width beyond which an interval names no figure: its middle may be off by a quarter or more."""


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
        """Whether the interval is narrow enough that its middle may be quoted, ranked and drawn.

        The ratio of its ends decides, so that a time is as usable as the speed-up that it comes from.
        """
        return self.low > 0 and self.high * (1 - MAX_HALF_WIDTH) <= self.low * (1 + MAX_HALF_WIDTH)

    @property
    def inverse(self) -> Interval:
        """The reciprocal, which is the ratio of the other side to this one."""
        return Interval(1 / self.high, 1 / self.mid, 1 / self.low)

    def times(self, factor: float) -> Interval:
        """Return the interval multiplied by a number above 0."""
        return Interval(self.low * factor, self.mid * factor, self.high * factor)

    def check_read(self) -> None:
        """Raise an InputError for ends that are not in order."""
        if self.low > self.mid or self.mid > self.high:
            raise InputError(f"an interval is {self.low}, {self.mid}, {self.high}, but must be low, middle and high")

    def overlaps(self, other: Interval) -> bool:
        """Whether the two intervals share any value."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        """Return such as "1.52 [1.49, 1.56]", or the ends alone if the middle is no figure."""
        if self.low != self.high and not self.is_usable:
            return f"{self.low:.3g} to {self.high:.3g}"
        return f"{self.mid:.3g} [{self.low:.3g}, {self.high:.3g}]"


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of `samples` with its percentile-bootstrap interval.

    Resampling is seeded, so that the same samples always give the same interval. For fewer than ten samples the
    interval is that of the sign test, which holds for any distribution. For fewer than six it is their range, which
    holds less: 94 % for five, 75 % for three.

    Sources: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; David & Nagaraja, Order
    Statistics (2003), section 7.1.
    """
    return _median_interval(tuple(samples))


@functools.lru_cache(maxsize=2048)
def _median_interval(samples: tuple[float, ...]) -> Interval:
    """Compute an interval once: a bootstrap takes milliseconds, and intervals of records are read again and again."""
    values = np.asarray(samples, dtype=float)
    if values.size == 0:
        raise ValueError("samples is empty, but a median needs at least one")
    mid = float(np.median(values))
    if values.size < FEW:
        ordered, skipped = np.sort(values), _count_skipped(values.size)
        return Interval(float(ordered[skipped]), mid, float(ordered[-1 - skipped]))
    draws = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(float(low), mid, float(high))


def _count_skipped(count: int) -> int:
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


def ratio_of(now: Interval, then: Interval, confidence: float = CONFIDENCE) -> Interval:
    """Return `now` over `then` with its interval, from two independent estimates above 0 with their 95 % intervals.

    On a logarithmic scale a ratio is a difference, and the arms of two intervals add up by their squares. For another
    confidence the arms are stretched like those of a normal distribution. If k intervals must hold together, each takes
    a confidence of 1 - 0.05 / k (Bonferroni).

    Source: Zou & Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27 (2008).
    """
    tail, usual = (1 - confidence) / 2, (1 - CONFIDENCE) / 2
    stretch = NormalDist().inv_cdf(1 - tail) / NormalDist().inv_cdf(1 - usual)
    mid = now.mid / then.mid
    down = math.hypot(math.log(now.mid / now.low), math.log(then.high / then.mid))
    up = math.hypot(math.log(now.high / now.mid), math.log(then.mid / then.low))
    return Interval(mid * math.exp(-stretch * down), mid, mid * math.exp(stretch * up))


Count = Annotated[int, Meta(ge=0)]
"""A number of things, or of bytes."""
Positive = Annotated[int, Meta(ge=1)]
"""A number of things of which there is at least one."""
Seconds = Annotated[float, Meta(ge=-1e-6)]
"""A duration. The difference of two equal ones may lie a rounding error below 0."""
Duration = Annotated[float, Meta(gt=0)]
"""A duration that was measured, and that others are divided by."""
Rate = Annotated[float, Meta(gt=0)]
"""An amount per second, used to calculate times."""
Amount = Annotated[float, Meta(ge=0)]
"""A quantity: operations, bytes per second, an error."""
Share = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""A fraction of a whole."""
