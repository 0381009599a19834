"""What to run: targets, example inputs, the shape mix, and what the user wants of it."""

from torchwise.workload.spec import DEFAULT_CALLS, Device, Mode, Objective, WorkloadSpec
from torchwise.workload.workload import Example, Roofline, Workload

__all__ = [
    "DEFAULT_CALLS",
    "Device",
    "Example",
    "Mode",
    "Objective",
    "Roofline",
    "Workload",
    "WorkloadSpec",
]
