"""Family `arr_coc`: three scores of a patch pull in different directions, and are balanced to one relevance."""

from __future__ import annotations

import functools
import math

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.arr_coc.scorers import SCORES

STEADY = 1e-8
"""Added to the variance of a score over an image. The usual 1e-5 is as large as that of scores which sum to 1."""

WIDTH = 768
"""Features per patch of the model whose scores the inputs resemble: their entropy is a little below ln 768."""


class TensionBalance(nn.Module):
    """r_i = Σ_k w_ik z_ik with w_i = softmax_k(C z_i + b): the balanced relevance of patch i.

    z_k is score k standardised over the patches of an image (nats, contrasts and shares have no common unit). Scores
    compete for weight in every patch. C (3, 3) and b (3,) are learned. The entries of C off its diagonal are the
    tensions: how much one score takes from, or gives to, the weight of another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coupling = nn.Linear(SCORES, SCORES)

    def weights(self, standard: torch.Tensor) -> torch.Tensor:
        """Map standardised scores (batch, patches, 3) to weights of the same shape, which sum to 1 over the last."""
        return functional.softmax(self.coupling(standard), dim=-1)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Map scores (batch, 3, patches) to relevance, (batch, patches)."""
        standard = functional.layer_norm(scores, scores.shape[-1:], eps=STEADY).transpose(1, 2)
        return (self.weights(standard) * standard).sum(dim=-1)


def build_tension(request: Request, *, batch: int, patches: int) -> Workload:
    """Build it on scores as the three scorers give them: nats, contrasts, and shares of 1 / patches on average."""
    model = request.draws().module(TensionBalance).eval()
    examples = functools.partial(_examples, request, batch, patches)
    numbers = SCORES * (SCORES + 1) + batch * patches * (SCORES + 1)
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        roofline=Roofline(tension_flops(batch, patches), float(request.dtype.itemsize * numbers)),
        reseed=examples,
    )


def tension_flops(batch: int, patches: int) -> float:
    """Count, per score: mean 1, variance 3, standardised 2, coupling 2 · 3, softmax 5, weighted sum 2."""
    return 19.0 * SCORES * batch * patches


def _examples(request: Request, batch: int, patches: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed + 1)  # another stream than the weights
    information = draws.uniform(batch, patches, low=math.log(WIDTH) - 1.0, high=math.log(WIDTH))
    salience = draws.uniform(batch, patches, low=0.5, high=1.5)
    query = draws.uniform(batch, patches, low=0.1, high=1.9) / patches
    return (Example((torch.stack((information, salience, query), dim=1),)),)
