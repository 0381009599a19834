"""The intervals of measurements, each worked out once.

A record derives its intervals anew whenever it is asked, by a bootstrap that takes tens of milliseconds for a thousand
rounds; rows, reasons and plots ask for the same ones again and again.
"""

from __future__ import annotations

from functools import lru_cache

from torchwise.records import Interval, Measurement

KEPT = 512


@lru_cache(maxsize=KEPT)
def speedup(measurement: Measurement) -> Interval:
    """Return baseline time over candidate time."""
    return measurement.speedup


@lru_cache(maxsize=KEPT)
def candidate_time(measurement: Measurement) -> Interval:
    """Return seconds per call of the candidate."""
    return measurement.candidate_time


@lru_cache(maxsize=KEPT)
def baseline_time(measurement: Measurement) -> Interval:
    """Return seconds per call of eager."""
    return measurement.baseline_time
