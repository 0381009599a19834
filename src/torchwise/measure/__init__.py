"""Clocks, paired timing, memory, and the caveats of a measurement."""

from torchwise.measure.cache_eviction import make_eviction
from torchwise.measure.clock import Clock
from torchwise.measure.cores import CoreWatch
from torchwise.measure.memory import measure_memory_use, peak_memory
from torchwise.measure.paired_timing import MIN_ROUND_S, MIN_ROUNDS, STOPPING_ROUNDS, Mix, Precision, measure_pair
from torchwise.measure.profile import Profile, profile_of

__all__ = [
    "MIN_ROUNDS",
    "MIN_ROUND_S",
    "STOPPING_ROUNDS",
    "Clock",
    "CoreWatch",
    "Mix",
    "Precision",
    "Profile",
    "make_eviction",
    "measure_memory_use",
    "measure_pair",
    "peak_memory",
    "profile_of",
]
