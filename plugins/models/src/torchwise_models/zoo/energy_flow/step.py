"""Family `energy_flow`: neuron, carrier, survival, division and statistics of one step, in one callable."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from torchwise.workload import Example, Workload
from torchwise.workload.roofline import count_bytes
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.carrier import EnergyCarrier
from torchwise_models.zoo.energy_flow.carrier import pointwise_flops as carrier_flops
from torchwise_models.zoo.energy_flow.life import survives
from torchwise_models.zoo.energy_flow.neuron import POINTWISE_FLOPS as NEURON_FLOPS
from torchwise_models.zoo.energy_flow.neuron import SimpleNeuron
from torchwise_models.zoo.energy_flow.storage import FlowState, draw_state
from torchwise_models.zoo.energy_flow.work import module_roofline


class Statistics(NamedTuple):
    """Counts of flows, each (), int64: those processed are those alive after the step and those it has seen die."""

    alive: torch.Tensor
    dead: torch.Tensor
    processed: torch.Tensor


class Stepped(NamedTuple):
    """The state of B flows after a step.

    Attributes:
        state: of each, with half its energy if it divides. That of the dead is not cleared.
        alive: which live on, (B,), bool.
        dividing: which of those have a child, (B,), bool. It has its parent's energy and hidden state, and age 0.
        births: the place of each flow's child, (B, 3): on the other side of its parent's former place, the farther the
            wider the gate is open.
        statistics: alive, dead, processed.
    """

    state: FlowState
    alive: torch.Tensor
    dividing: torch.Tensor
    births: torch.Tensor
    statistics: Statistics


class FusedStep(nn.Module):
    """The neuron and the carrier for each flow, then its survival, its division, and the statistics of all."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.neuron = SimpleNeuron()
        self.carrier = EnergyCarrier(hidden)

    def forward(self, state: FlowState, active: torch.Tensor | None = None) -> Stepped:
        """Move B flows on by a step, each by itself.

        Args:
            state: state of the flows, which is left as it is.
            active: (B,), bool: only these are alive before. By default all are.
        """
        positions, energies, hidden, ages = state
        features = self.neuron(positions, energies)
        energies, displacements, gates, hidden = self.carrier(features, energies, hidden, ages)
        ages = ages + 1
        active = torch.ones_like(ages, dtype=torch.bool) if active is None else active
        alive = survives(energies, ages) & active
        dividing = alive & (gates > 0.5)
        energies = torch.where(dividing[:, None], energies / 2, energies)
        moved = FlowState(positions + displacements, energies, hidden, ages)
        counts = Statistics(alive.sum(), (active & ~alive).sum(), active.sum())
        return Stepped(moved, alive, dividing, positions - gates[:, None] * displacements, counts)


def step_flops(hidden: int) -> int:
    """Count the operations of one flow that involve no parameter: neuron, carrier, survival 6, division 36, moves 9."""
    return NEURON_FLOPS + carrier_flops(hidden) + 51


def build_fused_step(request: Request, *, batch: int, hidden: int) -> Workload:
    """Build it for `batch` live flows."""
    model = request.draws().module(lambda: FusedStep(hidden)).eval()
    examples = functools.partial(_examples, request, batch, hidden)
    drawn = examples(request.seed)
    state: FlowState = drawn[0].args[0]
    # Written: the state, births, two masks and three counts.
    written = count_bytes((state, state.positions)) + 2 * batch + 3 * 8
    roofline = module_roofline(model, batch, step_flops(hidden), drawn, written)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples(request: Request, batch: int, hidden: int, seed: int) -> tuple[Example, ...]:
    # Another stream than the weights, which start from the request's seed.
    return (Example((draw_state(request, seed + 1, batch, hidden),)),)
