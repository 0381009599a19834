"""Launches: many small layers, for which the host is the limit and not the device."""

from __future__ import annotations

import functools

import torch
from torch import nn

from torchwise.plan.workload_spec import Roofline
from torchwise.workload import Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial.inputs import normal_examples


class ManySmallOps(nn.Module):
    """Layers in a row, each x ← max(0, W x + b): so little work per layer that starting it costs more."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def build_many_small_ops(request: Request, *, layers: int, width: int, batch: int) -> Workload:
    """Build `ManySmallOps` with square layers of `width`, on activations of shape (batch, width)."""
    model = request.draws().module(lambda: ManySmallOps(layers, width)).eval()
    examples = functools.partial(normal_examples, request, (batch, width))
    weights = layers * (width * width + width)
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        # Per layer and output: a product and a sum per input, the bias, the maximum. Between layers nothing is moved.
        roofline=Roofline(
            flops=float(layers * batch * width * (2 * width + 2)),
            bytes=float(request.dtype.itemsize * (weights + 2 * batch * width)),
        ),
        reseed=examples,
    )
