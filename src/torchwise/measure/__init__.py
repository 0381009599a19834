"""Clocks, alternation, memory, and what a measurement must say against itself."""

from torchwise.measure.clock import Clock
from torchwise.measure.memory import held_memory, peak_memory
from torchwise.measure.pairs import LEAST_ROUND_S, Mix, Precision, measure_pair
from torchwise.measure.profile import Profile, profile_of

__all__ = [
    "LEAST_ROUND_S",
    "Clock",
    "Mix",
    "Precision",
    "Profile",
    "held_memory",
    "measure_pair",
    "peak_memory",
    "profile_of",
]
