"""Family `energy_flow`: counting the least work of a call."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchwise.workload import Roofline
from torchwise.workload.roofline import count_bytes


def flops_per_row(model: nn.Module, pointwise: int) -> int:
    """Count the operations for one flow: a product and a sum per weight, one per bias or scale, and `pointwise`."""
    return pointwise + sum((2 if p.dim() > 1 else 1) * p.numel() for p in model.parameters())


def module_roofline(model: nn.Module, rows: int, pointwise: int, inputs: Any, written: int) -> Roofline:
    """Count a call in which each of `rows` flows passes each parameter once.

    Args:
        model: the model, whose parameters are read once.
        rows: number of flows that are computed.
        pointwise: operations for one flow that involve no parameter.
        inputs: a tree of tensors, each read once.
        written: bytes of the outputs, each written once. Intermediate results are not moved.
    """
    flops = rows * flops_per_row(model, pointwise)
    return Roofline(flops=float(flops), bytes=float(count_bytes((list(model.parameters()), inputs)) + written))
