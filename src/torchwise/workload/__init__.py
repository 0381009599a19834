"""The workload to tune: targets, example inputs, the mix of shapes, and the user's objective."""

from torchwise.plan.workload_spec import DEFAULT_CALLS, Device, Mode, Objective, Roofline, WorkloadSpec
from torchwise.workload.workload import Example, Workload

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
