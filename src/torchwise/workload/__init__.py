"""The workload to tune: targets, example inputs, the mix of shapes, and the user's objective."""

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
