"""Family `energy_flow`: one step of every live flow in storage, in two forms that give the same answer.

The dynamic form gathers the live flows, whose number changes at every step. It waits for the device to count them, its
shapes depend on data, and so graphs break. The padded form computes every slot and masks. That is more arithmetic, but
static shapes and no waiting, so it can be captured as a CUDA graph. The dynamic form declares it as its `static_form`,
which plans may run in its place.

In both, children take the free slots in order, those of flows that have just died included. The child of the dividing
flow in the lowest slot takes the lowest free slot, and so on. If slots run out, the children of the flows in the
highest slots are lost, with their energy. Slots without a flow are cleared.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from torchwise.workload import Example, Workload
from torchwise.workload.roofline import count_bytes
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.step import FusedStep, Statistics, Stepped, step_flops
from torchwise_models.zoo.energy_flow.storage import FREE, FlowState, FlowStorage, draw_storage, live_in, take
from torchwise_models.zoo.energy_flow.work import module_roofline


class Processed(NamedTuple):
    """Storage after a step, and the events in it.

    Attributes:
        storage: in new tensors.
        statistics: counts of the flows before it: alive, dead, processed.
        born: children that found a slot, (), int64.
        lost: children that found none, (), int64.
    """

    storage: FlowStorage
    statistics: Statistics
    born: torch.Tensor
    lost: torch.Tensor


class Processor(nn.Module):
    """Common part of both forms: the step takes a stack of flows through neuron, carrier, survival and division."""

    def __init__(self, step: FusedStep) -> None:
        super().__init__()
        self.step = step

    def static_form(self) -> Processor:
        """Return the form with static shapes, which shares the step, or itself if it has them."""
        return self


class DynamicProcessor(Processor):
    """The form whose shapes follow the number of live flows."""

    def static_form(self) -> PaddedProcessor:
        """Return the padded form of it."""
        return PaddedProcessor(self.step)

    def forward(self, storage: FlowStorage) -> Processed:
        """Move every live flow on by a step. `storage` is left as it is."""
        slots = storage.active.nonzero()[:, 0]
        step: Stepped = self.step(take(storage.state, slots))
        survivors = slots[step.alive]
        free = torch.ones_like(storage.active).index_fill(0, survivors, False).nonzero()[:, 0]
        wanted = step.dividing.nonzero()[:, 0]
        parents, seats = wanted[: len(free)], free[: len(wanted)]
        children = children_of(step, parents)
        taken = torch.cat((survivors, seats))
        names = torch.cat((storage.ids[survivors], storage.next_id + torch.arange(len(seats), device=seats.device)))
        rows = (torch.cat(pair) for pair in zip(take(step.state, step.alive), children, strict=True))
        stored = (
            torch.zeros_like(values).index_copy(0, taken, row) for values, row in zip(storage.state, rows, strict=True)
        )
        born = torch.ones_like(seats).sum()
        after = FlowStorage(
            FlowState(*stored),
            torch.zeros_like(storage.active).index_fill(0, taken, True),
            torch.full_like(storage.ids, FREE).index_copy(0, taken, names),
            storage.next_id + born,
        )
        return Processed(after, step.statistics, born, step.dividing.sum() - born)


class PaddedProcessor(Processor):
    """The form with static shapes, over every slot. It never waits for the device."""

    def forward(self, storage: FlowStorage) -> Processed:
        """Move every live flow on by a step. `storage` is left as it is."""
        step: Stepped = self.step(storage.state, storage.active)
        # Both are sorted, so the n-th free slot finds the n-th dividing flow by bisection.
        wanted, seats = step.dividing.cumsum(0), (~step.alive).cumsum(0)
        newborn = ~step.alive & (seats <= wanted[-1])
        parents = torch.searchsorted(wanted, seats).clamp(max=len(wanted) - 1)
        children = children_of(step, parents)
        stored = (
            _choose(newborn, child, _choose(step.alive, values, torch.zeros_like(values)))
            for values, child in zip(step.state, children, strict=True)
        )
        born = newborn.sum()
        after = FlowStorage(
            FlowState(*stored),
            step.alive | newborn,
            torch.where(newborn, storage.next_id + seats - 1, torch.where(step.alive, storage.ids, FREE)),
            storage.next_id + born,
        )
        return Processed(after, step.statistics, born, wanted[-1] - born)


def children_of(step: Stepped, parents: torch.Tensor) -> FlowState:
    """Return the children of the flows at the indices `parents`, (K,): placed aside, of age 0, else as the parent."""
    _, energies, hidden, ages = take(step.state, parents)
    return FlowState(step.births[parents], energies, hidden, torch.zeros_like(ages))


def _choose(mask: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    """Choose whole slots by a mask (N,)."""
    return torch.where(mask.view(-1, *(1,) * (yes.dim() - 1)), yes, no)


def build_processor(request: Request, *, capacity: int, hidden: int) -> Workload:
    """Build the dynamic form for `capacity` slots, three quarters of them live."""
    return _build(request, DynamicProcessor, capacity, hidden, rows=live_in(capacity))


def build_padded_processor(request: Request, *, capacity: int, hidden: int) -> Workload:
    """Build the padded form for `capacity` slots, three quarters of them live."""
    return _build(request, PaddedProcessor, capacity, hidden, rows=capacity)


def _build(request: Request, make: type[Processor], capacity: int, hidden: int, rows: int) -> Workload:
    model = request.draws().module(lambda: make(FusedStep(hidden))).eval()
    examples = functools.partial(storage_examples, request, capacity, hidden)
    drawn = examples(request.seed)
    # The net works on `rows` flows; what selects and stores them is not counted. Written: the storage and five counts.
    roofline = module_roofline(model, rows, step_flops(hidden), drawn, count_bytes(drawn) + 5 * 8)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)


def storage_examples(request: Request, capacity: int, hidden: int, seed: int) -> tuple[Example, ...]:
    """Draw the inputs of a processor."""
    # Another stream than the weights, which start from the request's seed.
    return (Example((draw_storage(request, seed + 1, capacity, hidden),)),)
