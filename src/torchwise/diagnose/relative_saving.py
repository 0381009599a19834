"""The saving of one side of a measurement over the other, as a share of the other's call.

Savings are shares and not seconds: the speed of a machine changes from minute to minute, so seconds of two measurements
cannot be compared. All savings of an explanation are shares of the call that it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from torchwise.measure.paired_timing import PAUSE_S
from torchwise.records import Interval, Measurement
from torchwise.records.statistics import median_interval

BATCHES = 8
"""Consecutive parts of a measurement from which its interval is calculated.

A disturbance of a machine lasts for many rounds, so that rounds say less than as many independent ones would. Source:
the method of batch means, Law, Simulation Modeling and Analysis, chapter 9.
"""
BLOCK_S = 0.02
"""Seconds of one side before the other runs: a saving describes a program that calls the model in a loop.

In shorter blocks between other callables, 15 µs of a small model's guards were measured as 25 µs.
"""
BETWEEN_PROCESSES = 0.03
"""Share of a call's time by which the saving of one callable over another differs from process to process.

The cause is the placement of code and data (Mytkowicz et al., Producing wrong data without doing anything obviously
wrong, ASPLOS 2009). Thirteen processes timed one pair of 220 µs on two CPU cores: the savings had a standard deviation
of 1.3 % of the call.
"""


def share_saved_anywhere(measured: Measurement) -> Interval:
    """Return the candidate's saving as a share of the baseline's call, in any process.

    See `share_saved`.
    """
    here = share_saved(measured)
    return Interval(here.low - BETWEEN_PROCESSES, here.mid, here.high + BETWEEN_PROCESSES)


def share_saved(measured: Measurement) -> Interval:
    """Return the candidate's saving as a share of the baseline's call, at most 1, and below 0 if it takes longer."""
    saved = 1 - np.divide(measured.candidate_s, measured.baseline_s)
    return median_interval([float(np.median(batch)) for batch in np.array_split(saved, min(BATCHES, len(saved)))])


def measure_with_retry(measure: Callable[[], Measurement], is_conclusive: Callable[[Measurement], bool]) -> Measurement:
    """Measure, and if noise left it inconclusive, measure once more and return the narrower of the two."""
    first = measure()
    if is_conclusive(first):
        return first
    time.sleep(PAUSE_S)
    return min(first, measure(), key=lambda measured: measured.speedup.half_width)
