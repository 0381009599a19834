"""Basic lessons: passes that fuse, launches of many small layers, and a Python `if` on the data.

Inputs of this family are activations of unit variance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request

INPUTS, HIDDEN, OUTPUTS = 10, 20, 5


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


class SimpleBranchModel(nn.Module):
    """y = W₂ f(W₁ x + b₁) + b₂, where f is max(0, ·) if the mean of x is above 0, and tanh if it is not.

    Python must know the mean before it can go on. So the host waits for the device on every call, and a compiler has to
    cut the graph there. A capture that recorded one branch would answer with it for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 10) to (batch, 5)."""
        hidden = self.first(x)
        hidden = torch.relu(hidden) if x.mean() > 0 else torch.tanh(hidden)
        y: torch.Tensor = self.second(hidden)
        return y


def build_fusion_demo(request: Request, *, batch: int, length: int, width: int) -> Workload:
    """Build `FusionDemo` on activations of shape (batch, length, width), of unit variance, in any floating dtype."""
    model = request.draws().module(lambda: FusionDemo(width)).eval()
    examples = functools.partial(normal_examples, request, (batch, length, width))
    count = batch * length * width
    # Per element: mean 1, variance 3, normalisation 2, weight and bias 2, GELU 5, scale and shift 2.
    return make_workload(request, model, examples, flops=15 * count, values=2 * count + 2 * width)


def build_elementwise_chain(request: Request, *, side: int) -> Workload:
    """Build `elementwise_chain` on a matrix (side, side) of unit variance, in any floating dtype."""
    examples = functools.partial(normal_examples, request, (side, side))
    count = side * side
    # Per element: sine, hyperbolic tangent and logistic function count as one each, three products and a sum.
    return make_workload(request, elementwise_chain, examples, flops=7 * count, values=2 * count)


def build_many_small_ops(request: Request, *, layers: int, width: int, batch: int) -> Workload:
    """Build `ManySmallOps` with square layers of `width`, on activations of shape (batch, width)."""
    model = request.draws().module(lambda: ManySmallOps(layers, width)).eval()
    examples = functools.partial(normal_examples, request, (batch, width))
    weights = layers * (width * width + width)
    # Per layer and output: a product and a sum per input, the bias, the maximum. Between layers nothing is moved.
    flops = layers * batch * width * (2 * width + 2)
    return make_workload(request, model, examples, flops, values=weights + 2 * batch * width)


def build_branch(request: Request, *, batch: int) -> Workload:
    """Build `SimpleBranchModel` on two inputs of shape (batch, 10), x and −x, which take one branch each."""
    model = request.draws().module(SimpleBranchModel).eval()
    examples = functools.partial(make_mirrored_examples, request, (batch, INPUTS))
    weights = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
    # Per row: a product and a sum per weight, the biases, the mean, and one f per hidden value.
    flops = batch * (2 * HIDDEN * (INPUTS + OUTPUTS) + HIDDEN + OUTPUTS + INPUTS + HIDDEN)
    return make_workload(request, model, examples, flops, values=weights + batch * (INPUTS + OUTPUTS))


def make_workload(
    request: Request, call: Callable[..., Any], examples: Callable[[int], tuple[Example, ...]], flops: int, values: int
) -> Workload:
    """Return a workload that does so many FLOPs in a call, and moves so many values of the requested dtype."""
    roofline = Roofline(flops=float(flops), bytes=float(request.dtype.itemsize * values))
    return Workload(call, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def normal_examples(request: Request, shape: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    """Return one example, a tensor of this shape."""
    # Another stream than the weights, which start from the request's seed.
    return (Example((request.draws(seed + 1).normal(*shape),)),)


def make_mirrored_examples(request: Request, shape: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    """Return two examples, x and −x: whichever way an odd function of x decides a branch, both ways are taken."""
    ((x,),) = (example.args for example in normal_examples(request, shape, seed))
    return (Example((x,)), Example((-x,)))
