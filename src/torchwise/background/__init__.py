"""Tune while a program serves: another process searches, compiles and verifies, and this one loads and swaps.

`search` is the other process, `aot_worker` the work of its workers, `protocol` their messages, and `tuning` the
program's handle.
"""

from torchwise.background.protocol import Order
from torchwise.background.tuning import Tuning, initial_decision, start

__all__ = ["Order", "Tuning", "initial_decision", "start"]
