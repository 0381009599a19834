"""The units that become one CUDA graph, one file each scope of capture.

A plan captures calls, whole (`call`) or in pieces between their questions (`branches`). Loops and training steps
(`loop`, `step`) are captured when a program asks for it.
"""

from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.segmented import SegmentedCall

CAPTURES = {kind.kind: kind for kind in (CapturedCall, SegmentedCall)}
"""The classes of captured calls, by the value of a plan's `capture`."""
