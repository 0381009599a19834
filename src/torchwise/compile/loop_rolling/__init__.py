"""Rolled: find a loop again in the graph in which Dynamo unrolled it, compile one body, and call it each time.

`periods` finds repetitions in a sequence of labels, and `flow` is a graph as numbers. `stretches` combines the two and
verifies that repetitions are equal. `split` cuts the graph, and `backend` is the entry point.
"""

from torchwise.compile.loop_rolling.backend import LoopRolling, inductor, wrap_backend

__all__ = ["LoopRolling", "inductor", "wrap_backend"]
