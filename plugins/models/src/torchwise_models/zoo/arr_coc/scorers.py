"""Family `arr_coc`: how relevant is each patch of an image? Three scorers, each of which sees it another way.

Features of patches are dimensionless and of about unit variance, (batch, patches, width). The patches of a square grid
lie row by row. Each scorer gives one number per patch, (batch, patches).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.arr_coc.patches import features_of_scene, window_sum

SCORES = 3
"""Information, salience, query: always in this order."""

# FLOPs per feature of a patch. Entropy: maximum, difference, exponential and sum of the softmax; then ln p, p, their
# product and its sum. Contrast: a 3×3 sum in two passes 4, without the centre 1, division, difference, square, sum.
# Query: product and sum.
_INFORMATION, _SALIENCE, _QUERY = 8.0, 9.0, 2.0


class InformationScorer(nn.Module):
    """H_i = −Σ_d p_id ln p_id with p_i = softmax(x_i): the Shannon entropy of the features of a patch, in nats.

    It ranges from 0, if one feature is everything, to ln width, if all are equal
    (https://doi.org/10.1002/j.1538-7305.1948.tb01338.x).
    """

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Map (batch, patches, width) to entropies, (batch, patches)."""
        log_p = functional.log_softmax(patches, dim=-1)
        return -(log_p.exp() * log_p).sum(dim=-1)


class SalienceScorer(nn.Module):
    """s_i = √(Σ_d (x_id − m_id)² / width), where m_i is the mean of the up to 8 neighbours of patch i in the grid.

    The contrast of a centre to its surroundings, after Itti, Koch and Niebur (https://doi.org/10.1109/34.730558).
    Patches on the border have the neighbours that exist. The grid is square, `grid` by `grid`, and at least 2.
    """

    def __init__(self, grid: int) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """Map (batch, grid², width) to contrasts, (batch, grid²)."""
        plane = patches.transpose(1, 2).unflatten(-1, (self.grid, self.grid))
        count = window_sum(plane.new_ones(1, 1, self.grid, self.grid), 1) - 1
        surroundings = (window_sum(plane, 1) - plane) / count
        contrast: torch.Tensor = torch.linalg.vector_norm(plane - surroundings, dim=1)
        return contrast.flatten(1) / math.sqrt(patches.shape[-1])


class QueryScorer(nn.Module):
    """a = softmax_i((W q + b) · x_i / √width): how well each patch answers a query. The scores of an image sum to 1.

    The scaled dot product of https://arxiv.org/abs/1706.03762. The patches have no projection of their own: with one
    head, it would be absorbed in W.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width)

    def forward(self, patches: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Map patches (batch, patches, width) and queries (batch, width) to scores, (batch, patches)."""
        projected = self.projection(query)[..., None] / math.sqrt(query.shape[-1])
        return functional.softmax((patches @ projected).squeeze(-1), dim=-1)


class Scorers(nn.Module):
    """All three scorers on the same patches."""

    def __init__(self, grid: int, width: int) -> None:
        super().__init__()
        self.information = InformationScorer()
        self.salience = SalienceScorer(grid)
        self.query = QueryScorer(width)

    def forward(self, patches: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Map patches (batch, grid², width) and queries (batch, width) to scores, (batch, 3, grid²)."""
        return torch.stack((self.information(patches), self.salience(patches), self.query(patches, query)), dim=1)


def build_information_scorer(request: Request, *, batch: int, grid: int, width: int) -> Workload:
    """Build it on scenes of `grid` by `grid` patches."""
    flops = _INFORMATION * batch * grid**2 * width
    return _make_patch_workload(request, InformationScorer().eval(), batch, grid, width, flops)


def build_salience_scorer(request: Request, *, batch: int, grid: int, width: int) -> Workload:
    """Build it on scenes of `grid` by `grid` patches."""
    flops = (_SALIENCE * width + 2.0) * batch * grid**2  # at the end of each patch a division and a square root
    return _make_patch_workload(request, SalienceScorer(grid).eval(), batch, grid, width, flops)


def build_query_scorer(request: Request, *, batch: int, grid: int, width: int) -> Workload:
    """Build it on scenes of `grid` by `grid` patches, with a query for each image."""
    model = request.draws().module(lambda: QueryScorer(width)).eval()
    examples = functools.partial(_with_query, request, batch, grid, width)
    numbers = _query_numbers(batch, grid, width) + batch * grid**2
    roofline = Roofline(_query_flops(batch, grid, width), float(request.dtype.itemsize * numbers))
    return Workload(model, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def build_scorers(request: Request, *, batch: int, grid: int, width: int) -> Workload:
    """Build all three on scenes of `grid` by `grid` patches, with a query for each image."""
    model = request.draws().module(lambda: Scorers(grid, width)).eval()
    examples = functools.partial(_with_query, request, batch, grid, width)
    roofline = Roofline(
        flops=scorers_flops(batch, grid, width),
        # The patches are read once for all three.
        bytes=float(request.dtype.itemsize * (_query_numbers(batch, grid, width) + SCORES * batch * grid**2)),
    )
    return Workload(model, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def scorers_flops(batch: int, grid: int, width: int) -> float:
    """Count the FLOPs of all three scorers: those of each by itself."""
    alone = ((_INFORMATION + _SALIENCE) * width + 2.0) * batch * grid**2
    return alone + _query_flops(batch, grid, width)


def _query_flops(batch: int, grid: int, width: int) -> float:
    """Count a projection of each query with bias and scale, the dot products, and 5 per patch for the softmax."""
    return batch * (2.0 * width * width + 2.0 * width + (_QUERY * width + 5.0) * grid**2)


def _query_numbers(batch: int, grid: int, width: int) -> int:
    """Count the numbers that the query's scorer reads: its weights, the queries and the patches."""
    return width * (width + 1) + batch * width * (1 + grid**2)


def _make_patch_workload(
    request: Request, model: nn.Module, batch: int, grid: int, width: int, flops: float
) -> Workload:
    examples = functools.partial(_patches, request, batch, grid, width)
    numbers = batch * grid**2 * (width + 1)  # read once, one score written per patch
    roofline = Roofline(flops, float(request.dtype.itemsize * numbers))
    return Workload(model, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def _patches(request: Request, batch: int, grid: int, width: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    return (Example((features_of_scene(request.draws(seed + 1), batch, grid**2, width),)),)


def _with_query(request: Request, batch: int, grid: int, width: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed + 1)
    return (Example((features_of_scene(draws, batch, grid**2, width), draws.normal(batch, width))),)
