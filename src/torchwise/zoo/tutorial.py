"""Family `tutorial`: the small programs by which `torch.compile` is taught, each with one lesson.

Inputs are dimensionless activations of unit variance.
"""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.draws import Request


class FusionDemo(nn.Module):
    """y = 1.2 · GELU(LayerNorm(x)) + 0.1 over the last dimension.

    LayerNorm is (x − mean) / √(variance + 1e-5) · weight + bias (https://arxiv.org/abs/1607.06450), GELU is
    x · Φ(x) with the normal distribution function Φ (https://arxiv.org/abs/1606.08415).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        return functional.gelu(self.norm(x)) * 1.2 + 0.1


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


def build_fusion_demo(request: Request, *, batch: int, length: int, width: int) -> Workload:
    """Build it on activations of shape (batch, length, width)."""
    model = request.draws().module(lambda: FusionDemo(width)).eval()
    examples = functools.partial(_normal_examples, request, (batch, length, width))
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


def build_many_small_ops(request: Request, *, layers: int, width: int, batch: int) -> Workload:
    """Build it with square layers of `width`, on activations of shape (batch, width)."""
    model = request.draws().module(lambda: ManySmallOps(layers, width)).eval()
    examples = functools.partial(_normal_examples, request, (batch, width))
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


def _normal_examples(request: Request, shape: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    return (Example((request.draws(seed + 1).normal(*shape),)),)
