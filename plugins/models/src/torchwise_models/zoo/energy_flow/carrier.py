"""Family `energy_flow`: the carrier, a recurrent net that moves flows and redistributes their energy."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from torchwise.workload import Example, Workload
from torchwise.workload.roofline import count_bytes
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.life import DIVISION, LIFESPAN, MATURITY, MODES, RETENTION, level_of
from torchwise_models.zoo.energy_flow.neuron import NEURON_WIDTH
from torchwise_models.zoo.energy_flow.storage import LAYERS, draw_state
from torchwise_models.zoo.energy_flow.work import module_roofline

STRIDE = 0.05
"""Farthest that a flow moves along an axis in one step."""
STEEPNESS = 64.0
"""Steepness of the gate around the level at which flows divide. The net shifts its argument by less than 1."""


class Carried(NamedTuple):
    """The state of B flows after a step.

    Attributes:
        energies: (B, MODES), before any division.
        displacements: (B, 3), within STRIDE.
        gates: (B,), from 0 to 1. A flow divides above 1/2.
        hidden: (B, LAYERS, H).
    """

    energies: torch.Tensor
    displacements: torch.Tensor
    gates: torch.Tensor
    hidden: torch.Tensor


class EnergyCarrier(nn.Module):
    """One step of a GRU over [features ‖ energy ‖ age / LIFESPAN], then three heads on its output h.

    energy'      = RETENTION · energy + (1 − RETENTION) · [age < MATURITY] · MODES · softmax(W_e(h))
    displacement = STRIDE · tanh(W_p(h))
    gate         = sigmoid(STEEPNESS · (level(energy') − DIVISION) + tanh(W_g(h)))

    Each head W is Linear, GELU, Linear. With 1024 hidden units it has about 10 million parameters. GRU:
    https://arxiv.org/abs/1406.1078, in the form of `torch.nn.GRU`, whose backward pass on a GPU needs train().
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(NEURON_WIDTH + MODES + 1, hidden, num_layers=LAYERS)
        self.energy_head = _head(hidden, MODES)
        self.position_head = _head(hidden, 3)
        self.gate_head = _head(hidden, 1)

    def forward(
        self, features: torch.Tensor, energies: torch.Tensor, hidden: torch.Tensor, ages: torch.Tensor
    ) -> Carried:
        """Carry B flows on.

        Args:
            features: the neuron's answer, (B, NEURON_WIDTH).
            energies: (B, MODES).
            hidden: (B, LAYERS, H).
            ages: in steps, (B,), int64.
        """
        age = ages.to(energies.dtype) / LIFESPAN
        sequence = torch.cat((features, energies, age[:, None]), dim=-1)[None]
        out, carried = self.gru(sequence, hidden.transpose(0, 1).contiguous())
        out = out[0]
        intake = MODES * torch.softmax(self.energy_head(out), dim=-1) * (ages < MATURITY)[:, None]
        energies = RETENTION * energies + (1 - RETENTION) * intake
        charge = STEEPNESS * (level_of(energies) - DIVISION)
        return Carried(
            energies,
            STRIDE * torch.tanh(self.position_head(out)),
            torch.sigmoid(charge + torch.tanh(self.gate_head(out)[:, 0])),
            carried.transpose(0, 1).contiguous(),
        )


def _head(hidden: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden, hidden // 4), nn.GELU(), nn.Linear(hidden // 4, width))


def pointwise_flops(hidden: int) -> int:
    """Count the operations of one flow that involve no parameter.

    GRU, per unit and layer: two sigmoids and a tanh 10, four sums, the reset and (1 − z) n + z h 5. Heads: GELU 5 per
    unit. Softmax, intake, energy and level 9 per mode, displacements 5 each, gate 10, age 1.
    """
    return 19 * LAYERS * hidden + 5 * 3 * (hidden // 4) + 9 * MODES + 5 * 3 + 10 + 1


def build_carrier(request: Request, *, batch: int, hidden: int) -> Workload:
    """Build it for `batch` flows, with `hidden` units in each layer of the GRU."""
    model = request.draws().module(lambda: EnergyCarrier(hidden)).eval()
    examples = functools.partial(_examples, request, batch, hidden)
    drawn = examples(request.seed)
    _, energies, states, _ = drawn[0].args
    written = count_bytes((energies, states)) + batch * 4 * request.dtype.itemsize
    roofline = module_roofline(model, batch, pointwise_flops(hidden), drawn, written)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples(request: Request, batch: int, hidden: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed, and another one for the features.
    state = draw_state(request, seed + 1, batch, hidden)
    features = request.draws(seed + 2).normal(batch, NEURON_WIDTH)
    return (Example((features, state.energies, state.hidden, state.ages)),)
