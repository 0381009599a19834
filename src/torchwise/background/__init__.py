"""Tuning beside a program that serves: another process searches, compiles and proves; this one loads and swaps.

`search` is the other process, `prepare` what its workers do, `messages` what is said between the two, `tuning` the
handle that the program holds.
"""

from torchwise.background.messages import Order
from torchwise.background.tuning import Tuning, start, undecided

__all__ = ["Order", "Tuning", "start", "undecided"]
