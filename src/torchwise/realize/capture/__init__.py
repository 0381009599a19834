"""What becomes one CUDA graph, one file each scope of capture.

A plan captures calls (`call`); loops and training steps (`loop`, `step`) are captured where a program asks for it.
"""

from torchwise.realize.capture.call import CapturedCall

CAPTURES = {"call": CapturedCall}
