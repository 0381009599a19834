"""Rolled: a loop that Dynamo unrolled is found again in its graph; one body is compiled, and called each time.

`periods` finds what repeats in a sequence of labels, `flow` is a graph as numbers, `stretches` holds the two together
and proves repetitions equal, `split` cuts the graph, `backend` is the door.
"""

from torchwise.realize.rolled.backend import Rolled, around, inductor

__all__ = ["Rolled", "around", "inductor"]
