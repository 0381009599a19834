"""Capture CUDA graphs, one file for each unit of capture.

A plan captures whole calls (`call`), or segments between the reads of GPU data in Python (`branches`). Loops and
training steps (`loop`, `step`) are captured when a program requests it.
"""

from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.segmented import SegmentedCall

CAPTURES = {kind.kind: kind for kind in (CapturedCall, SegmentedCall)}
"""The classes of captured calls, by the value of a plan's `capture`."""
