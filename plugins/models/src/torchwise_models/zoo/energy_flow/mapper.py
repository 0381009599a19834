"""Family `energy_flow`: the embedding mapper, an optional input stage which the other workloads leave out."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.life import CYCLE, MODES
from torchwise_models.zoo.energy_flow.work import module_roofline

SURFACE = -1.0
"""The plane z = SURFACE on which flows start."""


class Started(NamedTuple):
    """New-born flows: positions (F, 3) and energies (F, MODES)."""

    positions: torch.Tensor
    energies: torch.Tensor


class EmbeddingMapper(nn.Module):
    """Embeddings to new-born flows, one for each cell of a square grid on the surface.

    u        = GELU(LayerNorm(W₁ x))
    energy   = level of the new-born · MODES · softmax(W_e u), over the modes of each cell
    position = centre of the cell + half a cell · tanh(W_p u), along x and y
    """

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.activation = nn.GELU()
        self.energy_head = nn.Linear(width, side * side * MODES)
        self.position_head = nn.Linear(width, side * side * 2)
        self.reach = 1.0 / side
        centres = torch.linspace(self.reach - 1, 1 - self.reach, side)
        self.register_buffer("centres", torch.cartesian_prod(centres, centres), persistent=False)
        self.centres: torch.Tensor

    def forward(self, embeddings: torch.Tensor) -> Started:
        """Map embeddings (B, width) to B · side² flows, those of the first embedding first."""
        inner = self.activation(self.norm(self.inner(embeddings)))
        shares = torch.softmax(self.energy_head(inner).view(-1, MODES), dim=-1)
        shifts = self.position_head(inner).view(len(embeddings), -1, 2)
        plane = (self.centres + self.reach * torch.tanh(shifts)).view(-1, 2)
        positions = torch.cat((plane, torch.full_like(plane[:, :1], SURFACE)), dim=-1)
        return Started(positions, CYCLE[0] * MODES * shares)


def build_embedding_mapper(request: Request, *, batch: int, width: int, side: int) -> Workload:
    """Build it for `batch` embeddings of unit variance, each starting side² flows."""
    model = request.draws().module(lambda: EmbeddingMapper(width, side)).eval()
    examples = functools.partial(_examples, request, batch, width)
    drawn = examples(request.seed)
    cells = side * side
    written = batch * cells * (MODES + 3) * request.dtype.itemsize
    # LayerNorm 6 and GELU 5 per feature, softmax and level 6 per mode, tanh, half a cell and the centre 6 per shift.
    pointwise = 11 * width + cells * (6 * MODES + 6 * 2)
    roofline = module_roofline(model, batch, pointwise, (drawn, model.centres), written)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples(request: Request, batch: int, width: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    return (Example((request.draws(seed + 1).normal(batch, width),)),)
