"""Clocks, paired timing, memory, and the caveats of a measurement."""

from torchwise.measure.cache_eviction import make_eviction
from torchwise.measure.clock import Clock
from torchwise.measure.cores import CoreWatch
from torchwise.measure.memory import held_memory, peak_memory
from torchwise.measure.paired_timing import FEWEST_ROUNDS, LEAST_ROUND_S, LEAST_ROUNDS, Mix, Precision, measure_pair
from torchwise.measure.profile import Profile, profile_of

__all__ = [
    "FEWEST_ROUNDS",
    "LEAST_ROUNDS",
    "LEAST_ROUND_S",
    "Clock",
    "CoreWatch",
    "Mix",
    "Precision",
    "Profile",
    "held_memory",
    "make_eviction",
    "measure_pair",
    "peak_memory",
    "profile_of",
]
