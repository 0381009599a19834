"""Tune while a program serves: another process searches, compiles and verifies, and this one loads and swaps.

`search` is the other process, `aot_worker` the work of its workers, `protocol` their messages, and `tuning` the
program's handle.
"""

from torchwise.runtime.background.protocol import Order
from torchwise.runtime.background.tuning import Tuning, initial_decision, start

__all__ = ["Order", "Tuning", "initial_decision", "start"]
