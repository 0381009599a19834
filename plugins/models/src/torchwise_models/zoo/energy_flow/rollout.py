"""Family `energy_flow`: many steps in a row, the unit of work of the whole system."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from torchwise.workload import Workload
from torchwise.workload.roofline import count_bytes
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.energy_flow.processor import DynamicProcessor, PaddedProcessor, Processor, storage_examples
from torchwise_models.zoo.energy_flow.step import FusedStep, step_flops
from torchwise_models.zoo.energy_flow.storage import FlowStorage, live_in
from torchwise_models.zoo.energy_flow.work import module_roofline


class Rolled(NamedTuple):
    """Storage after T steps, and the history of the population.

    Attributes:
        storage: in new tensors.
        population: live flows after each step, (T,), int64.
        births: children that found a slot in each step, (T,), int64.
        deaths: flows that died in each step, (T,), int64.
    """

    storage: FlowStorage
    population: torch.Tensor
    births: torch.Tensor
    deaths: torch.Tensor


class Rollout(nn.Module):
    """A processor applied `steps` times over."""

    def __init__(self, processor: Processor, steps: int) -> None:
        super().__init__()
        self.processor = processor
        self.steps = steps

    def static_form(self) -> Rollout:
        """Return it over the static form of its processor, or itself if that has static shapes already."""
        processor = self.processor.static_form()
        return self if processor is self.processor else Rollout(processor, self.steps)

    def forward(self, storage: FlowStorage) -> Rolled:
        """Move every live flow on by `steps` steps. `storage` is left as it is."""
        history = []
        for _ in range(self.steps):
            storage, statistics, born, _ = self.processor(storage)
            history.append(torch.stack((statistics.alive + born, born, statistics.dead)))
        return Rolled(storage, *torch.stack(history, dim=1).unbind())


def build_rollout(request: Request, *, capacity: int, hidden: int, steps: int) -> Workload:
    """Build it over the padded processor, for `capacity` slots, three quarters of them live at first."""
    return _build(request, PaddedProcessor, capacity, hidden, steps, rows=capacity)


def build_dynamic_rollout(request: Request, *, capacity: int, hidden: int, steps: int) -> Workload:
    """Build it over the dynamic processor."""
    return _build(request, DynamicProcessor, capacity, hidden, steps, rows=live_in(capacity))


def _build(request: Request, make: type[Processor], capacity: int, hidden: int, steps: int, rows: int) -> Workload:
    model = request.draws().module(lambda: Rollout(make(FusedStep(hidden)), steps)).eval()
    examples = functools.partial(storage_examples, request, capacity, hidden)
    drawn = examples(request.seed)
    # As a single step, `steps` times, with the flows alive at first. Between steps nothing is moved.
    written = count_bytes(drawn) + 3 * 8 * steps
    roofline = module_roofline(model, rows * steps, step_flops(hidden), drawn, written)
    return Workload(model, drawn, name=request.name, roofline=roofline, reseed=examples)
