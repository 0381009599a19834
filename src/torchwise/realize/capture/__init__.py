"""What becomes one CUDA graph, one file each scope of capture."""

from torchwise.realize.capture.call import CapturedCall

CAPTURES = {"call": CapturedCall}
