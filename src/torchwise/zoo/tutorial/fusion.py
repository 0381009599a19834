"""Fusion: elementwise passes that read and write all of memory, each for next to no arithmetic."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from torchwise.plan.workload_spec import Roofline
from torchwise.workload import Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial.inputs import normal_examples


class FusionDemo(nn.Module):
    """y = 1.2 · GELU(LayerNorm(x)) + 0.1 over the last dimension.

    LayerNorm is (x − mean) / √(variance + 1e-5) · weight + bias (https://arxiv.org/abs/1607.06450). GELU is x · Φ(x)
    with the normal distribution function Φ (https://arxiv.org/abs/1606.08415).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        return functional.gelu(self.norm(x)) * 1.2 + 0.1


def elementwise_chain(x: torch.Tensor) -> torch.Tensor:
    """Return tanh(1.5 sin x + 0.5 x) · σ(x), of the shape and dtype of x. It takes seven passes in eager, one if fused.

    σ is the logistic function. Every step is smooth and of order one, so that rounding stays rounding.
    """
    return torch.tanh(1.5 * torch.sin(x) + 0.5 * x) * torch.sigmoid(x)


def build_fusion_demo(request: Request, *, batch: int, length: int, width: int) -> Workload:
    """Build `FusionDemo` on activations of shape (batch, length, width), of unit variance, in any floating dtype."""
    model = request.draws().module(lambda: FusionDemo(width)).eval()
    examples = functools.partial(normal_examples, request, (batch, length, width))
    count = batch * length * width
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        # Per element: mean 1, variance 3, normalisation 2, weight and bias 2, GELU 5, scale and shift 2.
        roofline=Roofline(
            flops=15.0 * count,
            bytes=float(request.dtype.itemsize * (2 * count + 2 * width)),
        ),
        reseed=examples,
    )


def build_elementwise_chain(request: Request, *, side: int) -> Workload:
    """Build `elementwise_chain` on a matrix (side, side) of unit variance, in any floating dtype."""
    examples = functools.partial(normal_examples, request, (side, side))
    count = side * side
    return Workload(
        elementwise_chain,
        examples(request.seed),
        name=request.name,
        # Per element: sine, hyperbolic tangent and logistic function count as one each, three products and a sum.
        roofline=Roofline(flops=7.0 * count, bytes=float(request.dtype.itemsize * 2 * count)),
        reseed=examples,
    )
