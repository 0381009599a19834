"""What one side of a measurement saves over the other, in seconds of each call."""

from __future__ import annotations

import numpy as np

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


def saving_anywhere(measured: Measurement) -> Interval:
    """Return what the candidate saves over the baseline, in this process or another; see `saving`."""
    here = saving(measured)
    beyond = BETWEEN_PROCESSES * measured.baseline_time.mid
    return Interval(here.low - beyond, here.mid, here.high + beyond)


def saving(measured: Measurement) -> Interval:
    """Return what the candidate saves over the baseline; below 0 where it takes longer."""
    saved = np.subtract(measured.baseline_s, measured.candidate_s)
    return median_interval([float(np.median(spell)) for spell in np.array_split(saved, min(SPELLS, len(saved)))])
