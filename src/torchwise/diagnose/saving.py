"""What one side of a measurement saves over the other, in seconds of each call."""

from __future__ import annotations

import numpy as np

from torchwise.records import Interval, Measurement
from torchwise.records.statistics import median_interval

SPELLS = 8
"""Parts of a measurement, one after the other, by which its interval is known: what disturbs a machine lasts for many
rounds, so that rounds say less than as many independent ones would (the method of batch means: Law, Simulation
Modeling and Analysis, chapter 9)."""


def saving(measured: Measurement) -> Interval:
    """Return what the candidate saves over the baseline; below 0 where it takes longer."""
    saved = np.subtract(measured.baseline_s, measured.candidate_s)
    return median_interval([float(np.median(spell)) for spell in np.array_split(saved, min(SPELLS, len(saved)))])
