"""The units that become one CUDA graph, one file each scope of capture.

A plan captures calls, whole (`call`) or in pieces between their questions (`branches`). Loops and training steps
(`loop`, `step`) are captured when a program asks for it.
"""

from torchwise.realize.capture.branches import BranchingCall
from torchwise.realize.capture.call import CapturedCall

CAPTURES = {kind.kind: kind for kind in (CapturedCall, BranchingCall)}
"""The classes of captured calls, by the value of a plan's `capture`."""
