"""The saving of one side of a measurement over the other, as a share of the other's call.

Savings are shares and not seconds: a machine is faster in one minute than in the next. Seconds of two measurements
cannot be compared. All savings of an explanation are shares of the one call that it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from torchwise.measure.paired_timing import PAUSE_S
from torchwise.records import Interval, Measurement
from torchwise.records.statistics import median_interval

SPELLS = 8
"""Consecutive parts of a measurement from which its interval is calculated.

A disturbance of a machine lasts for many rounds, so that rounds say less than as many independent ones would. Source:
the method of batch means, Law, Simulation Modeling and Analysis, chapter 9.
"""
BLOCK_S = 0.02
"""Seconds of one side before the other's turn: a saving describes a program that calls the model in a loop.

In shorter blocks, beside other callables, 15 µs of a small model's guards came out as 25.
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
    return median_interval([float(np.median(spell)) for spell in np.array_split(saved, min(SPELLS, len(saved)))])


def measure_with_retry(measure: Callable[[], Measurement], tells: Callable[[Measurement], bool]) -> Measurement:
    """Measure, and once more after a while if noise left it inconclusive, and return the narrower of the two."""
    found = measure()
    if tells(found):
        return found
    time.sleep(PAUSE_S)
    return min(found, measure(), key=lambda measured: measured.speedup.half_width)
