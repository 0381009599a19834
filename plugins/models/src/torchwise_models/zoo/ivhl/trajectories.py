"""Family `ivhl`: a recurrent network that carries point vortices on in time.

Source of the cell: Cho et al., https://arxiv.org/abs/1406.1078, in the form of `torch.nn.GRUCell`. Positions are in
metres, velocities in metres per step.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request

MOTION = 4
"""x, y, and the velocities along them."""
FEATURES = MOTION + 1
"""The motion and the charge of a vortex."""


class TrajectoryStep(nn.Module):
    """Move every vortex on by one step, and update the memory.

    r = σ(W_r s + U_r h + b_r), z = σ(W_z s + U_z h + b_z), n = tanh(W_n s + b_n + r ∘ (U_n h + c_n)),
    h' = (1 − z) ∘ n + z ∘ h, motion' = motion + V h' + b
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(FEATURES, hidden)
        self.head = nn.Linear(hidden, MOTION)

    def forward(self, vortices: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map vortices (batch, 5) and memory h (batch, hidden) to their motion (batch, 4) and memory afterwards."""
        hidden = self.cell(vortices, hidden)
        return vortices[:, :MOTION] + self.head(hidden), hidden


def build_gru_step(request: Request, *, batch: int, hidden: int) -> Workload:
    """Build it for vortices of charge +1 or −1 in the square [−1, 1]², after some steps: the memory is not empty."""
    model = request.draws().module(lambda: TrajectoryStep(hidden)).eval()
    examples = functools.partial(_examples, request, batch, hidden)
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        roofline=_roofline(request.dtype.itemsize, batch, hidden),
        reseed=examples,
    )


def _roofline(itemsize: int, batch: int, hidden: int) -> Roofline:
    """Count products and sums of the matrices, then per hidden unit: 6 biases, 4 to join, 3 functions, 4 to blend.

    Weights, vortices and memory are read once. Motion and memory are written.
    """
    weights = 3 * hidden * (FEATURES + hidden) + hidden * MOTION
    biases = 6 * hidden + MOTION
    return Roofline(
        flops=float(batch * (2 * weights + 17 * hidden + 2 * MOTION)),
        bytes=float(itemsize * (weights + biases + batch * (FEATURES + hidden + MOTION + hidden))),
    )


def _examples(request: Request, batch: int, hidden: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed + 1)  # another stream than the weights, which start from the request's seed
    position = draws.uniform(batch, 2, low=-1.0, high=1.0)
    velocity = draws.normal(batch, 2, scale=0.1)
    charge = draws.normal(batch, 1).sign()
    memory = draws.uniform(batch, hidden, low=-1.0, high=1.0)
    return (Example((torch.cat((position, velocity, charge), dim=-1), memory)),)
