"""Clocks, paired timing, memory, and the caveats of a measurement."""
