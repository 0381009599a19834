"""What one side of a measurement saves over the other, as a share of the other's call.

As a share, and not in seconds: a machine is faster in one minute than in the next, so that seconds of two measurements
cannot be set side by side. All savings of an explanation are shares of the one call that it shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from torchwise.measure.pairs import PAUSE_S
from torchwise.records import Interval, Measurement
from torchwise.records.statistics import median_interval

SPELLS = 8
"""Parts of a measurement, one after the other, by which its interval is known: what disturbs a machine lasts for many
rounds, so that rounds say less than as many independent ones would (the method of batch means: Law, Simulation
Modeling and Analysis, chapter 9)."""
BLOCK_S = 0.02
"""Seconds of one side before the other's turn: what a mend saves is said of a program that calls the model in a loop.
In shorter blocks, beside other callables, 15 µs of a small model's guards came out as 25."""
BETWEEN_PROCESSES = 0.03
"""Of a call's time: what one callable saves over another differs from process to process, by where code and data come
to lie (Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009). Of 13 processes
that timed one pair of 220 µs on two CPU cores, the savings had a standard deviation of 1.3 % of the call."""


def share_saved_anywhere(measured: Measurement) -> Interval:
    """Return what share of the baseline's call the candidate saves, in this process or another; see `share_saved`."""
    here = share_saved(measured)
    return Interval(here.low - BETWEEN_PROCESSES, here.mid, here.high + BETWEEN_PROCESSES)


def share_saved(measured: Measurement) -> Interval:
    """Return what share of the baseline's call the candidate saves; below 0 where it takes longer, never above 1."""
    saved = 1 - np.divide(measured.candidate_s, measured.baseline_s)
    return median_interval([float(np.median(spell)) for spell in np.array_split(saved, min(SPELLS, len(saved)))])


def measure_until_told(measure: Callable[[], Measurement], tells: Callable[[Measurement], bool]) -> Measurement:
    """Measure, and once more after a while where that was too noisy to tell; return the narrower of the two."""
    found = measure()
    if tells(found):
        return found
    time.sleep(PAUSE_S)
    return min(found, measure(), key=lambda measured: measured.speedup.half_width)
