"""Family `energy_flow`: storage of flows, in preallocated arrays with a slot for each flow.

Positions are dimensionless, in a box of about [−1, 1]³. Energies are relative to the offer of the surroundings.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.workload.roofline import count_bytes
from torchwise.zoo.random_inputs import Draws, Request
from torchwise_models.zoo.energy_flow.life import CYCLE, LIFESPAN, MODES

LAYERS = 2
"""Layers of the carrier's GRU, each with a hidden state."""
FREE = -1
"""The id in a slot without a flow."""


class FlowState(NamedTuple):
    """The state of N flows.

    Attributes:
        positions: (N, 3).
        energies: (N, MODES), not negative.
        hidden: (N, LAYERS, H), within (−1, 1).
        ages: in steps, (N,), int64.
    """

    positions: torch.Tensor
    energies: torch.Tensor
    hidden: torch.Tensor
    ages: torch.Tensor


class FlowStorage(NamedTuple):
    """N slots, of which some hold a live flow. The contents of the others have no meaning. A step clears them to zeros.

    Attributes:
        state: of every slot.
        active: which slots hold a live flow, (N,), bool.
        ids: ids of the flows, (N,), int64, and FREE elsewhere.
        next_id: id of the next flow that is born, (), int64.
    """

    state: FlowState
    active: torch.Tensor
    ids: torch.Tensor
    next_id: torch.Tensor


def take(state: FlowState, rows: torch.Tensor) -> FlowState:
    """Return the flows at `rows`: indices (K,), or a mask (N,)."""
    return FlowState(*(values[rows] for values in state))


def fetch_and_update(state: FlowState, active: torch.Tensor, fresh: FlowState) -> tuple[FlowState, FlowState]:
    """Fetch the live flows in slot order, and write `fresh` over them in bulk.

    How many there are is read from the mask, which makes the CPU wait for the device.

    Args:
        state: of N slots.
        active: which of them hold a live flow, (N,), bool, K of them true.
        fresh: K flows.

    Returns:
        The K flows as they were, and all N slots after the update, in new tensors.
    """
    slots = active.nonzero()[:, 0]
    updated = (values.clone().index_copy_(0, slots, rows) for values, rows in zip(state, fresh, strict=True))
    return take(state, slots), FlowState(*updated)


def update_in_place(state: FlowState, active: torch.Tensor, fresh: FlowState) -> torch.Tensor:
    """Write `fresh` over the live flows in bulk, in place, and return how many there are.

    Sizes depend on no value, so the CPU waits for nothing. A CUDA graph can hold it.

    Args:
        state: of N slots, which is written to.
        active: which of them hold a live flow, (N,), bool, K of them true.
        fresh: N flows, of which the first K count.

    Returns:
        K, (), int64.
    """
    row = (active.cumsum(0) - 1).clamp(min=0)
    for values, rows in zip(state, fresh, strict=True):
        live = active.view(-1, *(1,) * (values.dim() - 1))
        values.copy_(torch.where(live, rows[row], values))
    return active.sum()


def build_storage_in_place(request: Request, *, capacity: int, hidden: int) -> Workload:
    """Build it with `capacity` slots, three quarters of them live, and hidden states of `hidden` units."""
    examples = functools.partial(_examples_in_place, request, capacity, hidden)
    drawn = examples(request.seed)
    state, active, fresh = drawn[0].args
    # Everything is read once, and all slots are written.
    roofline = Roofline(flops=float(capacity), bytes=float(2 * count_bytes(state) + count_bytes((active, fresh)) + 8))
    return Workload(update_in_place, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples_in_place(request: Request, capacity: int, hidden: int, seed: int) -> tuple[Example, ...]:
    storage = draw_storage(request, seed, capacity, hidden)
    return (Example((storage.state, storage.active, draw_state(request, seed + 1, capacity, hidden))),)


def build_storage(request: Request, *, capacity: int, hidden: int) -> Workload:
    """Build it with `capacity` slots, three quarters of them live, and hidden states of `hidden` units."""
    examples = functools.partial(_examples, request, capacity, hidden)
    drawn = examples(request.seed)
    state, active, fresh = drawn[0].args
    # No arithmetic but finding the live slots. Everything is read once; what is fetched, and all slots, are written.
    roofline = Roofline(flops=float(capacity), bytes=float(2 * count_bytes((state, fresh)) + count_bytes(active)))
    return Workload(fetch_and_update, drawn, name=request.name, roofline=roofline, reseed=examples)


def _examples(request: Request, capacity: int, hidden: int, seed: int) -> tuple[Example, ...]:
    storage = draw_storage(request, seed, capacity, hidden)
    fresh = draw_state(request, seed + 1, live_in(capacity), hidden)
    return (Example((storage.state, storage.active, fresh)),)


def live_in(capacity: int) -> int:
    """Return how many flows are drawn for that many slots: three quarters."""
    return 3 * capacity // 4


def draw_state(request: Request, seed: int, count: int, hidden: int) -> FlowState:
    """Draw `count` flows: anywhere in the box, of any age, at any level of the cycle, give or take 2 %."""
    return _state(request, _exact(request, seed), count, hidden)


def draw_storage(request: Request, seed: int, capacity: int, hidden: int) -> FlowStorage:
    """Draw `capacity` slots, three quarters of them live. The others hold the remains of dead flows."""
    draws = _exact(request, seed)
    live = live_in(capacity)
    active = torch.zeros(capacity, dtype=torch.bool)
    active[draws.uniform(capacity).argsort()[:live]] = True
    first = draws.uniform(low=capacity, high=1e6).long()
    ids = torch.where(active, first + active.cumsum(0) - 1, FREE)
    state = _state(request, draws, capacity, hidden)
    return FlowStorage(state, *(values.to(request.device) for values in (active, ids, first + live)))


def _exact(request: Request, seed: int) -> Draws:
    """Draw in float64 on the CPU: whole numbers are cut from it, which must not depend on the request's dtype."""
    return replace(request, dtype=torch.float64, device="cpu").draws(seed)


def _state(request: Request, draws: Draws, count: int, hidden: int) -> FlowState:
    positions = draws.uniform(count, 3, low=-1.0, high=1.0)
    levels = torch.tensor(CYCLE, dtype=torch.float64)[draws.uniform(count, high=len(CYCLE)).long()]
    modes = draws.uniform(count, MODES, low=0.5, high=1.5)
    spread = modes / modes.mean(dim=-1, keepdim=True) * draws.uniform(count, 1, low=0.98, high=1.02)
    states = draws.uniform(count, LAYERS, hidden, low=-0.9, high=0.9)
    ages = draws.uniform(count, high=LIFESPAN).long().to(request.device)

    def place(values: torch.Tensor) -> torch.Tensor:
        return values.to(device=request.device, dtype=request.dtype)

    return FlowState(place(positions), place(levels[:, None] * spread), place(states), ages)
