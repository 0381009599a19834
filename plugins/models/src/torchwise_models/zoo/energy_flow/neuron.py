"""Family `energy_flow`: the neuron, a small perceptron that every flow passes in every step."""

from __future__ import annotations

import functools

import torch
from torch import nn

from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.life import MODES
from torchwise_models.zoo.energy_flow.storage import draw_state
from torchwise_models.zoo.energy_flow.work import module_roofline

ENCODED = 8
"""Features that a position is encoded in."""
NEURON_WIDTH = 16
DROPOUT = 0.1


class SimpleNeuron(nn.Module):
    """y = W₂ · Dropout(GELU(LayerNorm(W₁ · [W₀ position ‖ energy]))), each W with a bias. It has about 1000 parameters.

    LayerNorm: https://arxiv.org/abs/1607.06450, GELU: https://arxiv.org/abs/1606.08415. Dropout acts in training only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, ENCODED)
        self.inner = nn.Linear(ENCODED + MODES, NEURON_WIDTH)
        self.norm = nn.LayerNorm(NEURON_WIDTH)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(DROPOUT)
        self.outer = nn.Linear(NEURON_WIDTH, NEURON_WIDTH)

    def forward(self, positions: torch.Tensor, energies: torch.Tensor) -> torch.Tensor:
        """Map positions (B, 3) and energies (B, MODES) to features (B, NEURON_WIDTH)."""
        joined = torch.cat((self.encoder(positions), energies), dim=-1)
        features: torch.Tensor = self.outer(self.dropout(self.activation(self.norm(self.inner(joined)))))
        return features


# LayerNorm: mean 1, variance 3, normalisation 2 (its weight and bias are counted as parameters); GELU 5.
POINTWISE_FLOPS = 11 * NEURON_WIDTH


def build_neuron(request: Request, *, batch: int) -> Workload:
    """Build it for `batch` flows."""
    model = request.draws().module(SimpleNeuron).eval()
    examples = functools.partial(_examples, request, batch)
    drawn = examples(request.seed)
    written = batch * NEURON_WIDTH * request.dtype.itemsize
    roofline = module_roofline(model, batch, POINTWISE_FLOPS, drawn, written)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples(request: Request, batch: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    state = draw_state(request, seed + 1, batch, hidden=1)
    return (Example((state.positions, state.energies)),)
