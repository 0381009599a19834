"""What becomes one CUDA graph, one file each scope of capture.

A plan captures calls (`call`, or between their questions `branches`); loops and training steps (`loop`, `step`) are
captured where a program asks for it.
"""

from torchwise.realize.capture.branches import BranchingCall
from torchwise.realize.capture.call import CapturedCall

CAPTURES = {kind.kind: kind for kind in (CapturedCall, BranchingCall)}
"""What a plan's `capture` stands for."""
