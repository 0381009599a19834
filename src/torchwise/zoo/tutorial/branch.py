"""Branches: a Python `if` on the data, so that no one graph holds the whole program."""

from __future__ import annotations

import functools

import torch
from torch import nn

from torchwise.plan.workload_spec import Roofline
from torchwise.workload import Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial.inputs import make_mirrored_examples

INPUTS, HIDDEN, OUTPUTS = 10, 20, 5


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


def build_branch(request: Request, *, batch: int) -> Workload:
    """Build `SimpleBranchModel` on two inputs of shape (batch, 10), x and −x, which take one branch each."""
    model = request.draws().module(SimpleBranchModel).eval()
    examples = functools.partial(make_mirrored_examples, request, (batch, INPUTS))
    weights = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        # Per row: a product and a sum per weight, the biases, the mean, and one f per hidden value.
        roofline=Roofline(
            flops=float(batch * (2 * HIDDEN * (INPUTS + OUTPUTS) + HIDDEN + OUTPUTS + INPUTS + HIDDEN)),
            bytes=float(request.dtype.itemsize * (weights + batch * (INPUTS + OUTPUTS))),
        ),
        reseed=examples,
    )
