"""Family `training`: models of the other families with all the parts of a training step.

Each call is one step: it returns the loss, and changes weights and the optimizer's state. Targets can be learnt: random
labels by heart, another net's answers, or the physical evolution of a field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

from torchwise import TrainStep
from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial import build_six_layer_transformer
from torchwise_models.zoo import arr_coc, energy_flow, spinlock

RATE = 1e-4
"""Learning rate of AdamW, as `arr_coc` is trained with."""
HORIZON = 10_000
"""Steps over which a schedule runs down."""
DIFFUSION = 0.2
"""Share of a cell that moves to its four neighbours: one explicit Euler step of the heat equation on a torus."""


def build_transformer(request: Request, *, batch: int, length: int, width: int, heads: int) -> Workload:
    """Build `six_layer_transformer` under bfloat16 autocast with AdamW. It returns its own loss, in nats per token."""
    forward = build_six_layer_transformer(request, batch=batch, length=length, width=width, heads=heads)
    model = _module(forward)
    step = TrainStep(model, None, _adamw(model), autocast=_autocast(request))
    return _steps(forward, step, lambda example: (example.args,))


def build_relevance(
    request: Request, *, batch: int, grid: int, patch: int, width: int, heads: int, layers: int
) -> Workload:
    """Build `arr_coc.model` with AdamW. Targets are features of unit variance, the loss their mean squared distance."""
    sizes = {"batch": batch, "grid": grid, "patch": patch, "width": width, "heads": heads, "layers": layers}
    forward = arr_coc.build_model(request, **sizes)
    model = _module(forward).train()
    target = request.draws(request.seed + 3).normal(batch, grid**2, width)
    step = TrainStep(model, functional.mse_loss, _adamw(model))
    return _steps(forward, step, lambda example: (example.args, target))


def build_relevance_amp(
    request: Request, *, batch: int, grid: int, patch: int, width: int, heads: int, layers: int
) -> Workload:
    """Build the same under bfloat16 autocast."""
    workload = build_relevance(request, batch=batch, grid=grid, patch=patch, width=width, heads=heads, layers=layers)
    assert workload.step is not None
    workload.step.autocast = _autocast(request)
    return workload


def build_carrier(request: Request, *, batch: int, hidden: int) -> Workload:
    """Build `energy_flow.carrier` with AdamW and clipping. Targets are the answers of a carrier of other weights."""
    forward = energy_flow.build_carrier(request, batch=batch, hidden=hidden)
    teacher = _module(
        energy_flow.build_carrier(replace(request, seed=request.seed + 3), batch=batch, hidden=hidden)
    ).eval()
    model = _module(forward).train()
    step = TrainStep(model, _distance, _adamw(model), clip_norm=1.0)

    def batch_of(example: Example) -> tuple[Any, ...]:
        with torch.no_grad():
            return example.args, tuple(teacher(*example.args))

    return _steps(forward, step, batch_of)


def build_operator(request: Request, *, batch: int, side: int, channels: int) -> Workload:
    """Build `spinlock.operator_groupnorm` with AdamW, clipping and a cosine schedule. It learns diffusion."""
    forward = spinlock.build_operator_groupnorm(request, batch=batch, side=side, channels=channels)
    model = _module(forward)
    optimizer = _adamw(model)
    schedule = CosineAnnealingLR(optimizer, HORIZON)
    step = TrainStep(model, functional.mse_loss, optimizer, scheduler=schedule, clip_norm=1.0)
    return _steps(forward, step, lambda example: (example.args, diffuse(*example.args)))


def diffuse(field: torch.Tensor) -> torch.Tensor:
    """Return fields (…, height, width) after one step of diffusion on a torus, which keeps their sum."""
    neighbours = sum(torch.roll(field, shift, dim) for dim in (-2, -1) for shift in (-1, 1))
    return (1 - DIFFUSION) * field + DIFFUSION / 4 * neighbours


def _distance(outputs: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the sum of the mean squared distances of several tensors."""
    terms = [functional.mse_loss(ours, theirs) for ours, theirs in zip(outputs, targets, strict=True)]
    return torch.stack(terms).sum()


def _autocast(request: Request) -> torch.dtype | None:
    """Return the dtype for autocast, or None if another dtype than float32 is requested, such as for a reference."""
    return torch.bfloat16 if request.dtype is torch.float32 else None


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), RATE)


def _module(forward: Workload) -> nn.Module:
    model = forward.module
    assert model is not None, "what is trained is a module"
    return model


def _steps(forward: Workload, step: TrainStep, batch_of: Callable[[Example], tuple[Any, ...]]) -> Workload:
    """Return the workload of steps on batches from a model's own examples. The model's roofline is left out."""

    def examples(found: tuple[Example, ...]) -> tuple[Example, ...]:
        return tuple(replace(example, args=batch_of(example), kwargs={}) for example in found)

    reseed = forward.reseed
    return Workload(
        step,
        examples(forward.examples),
        name=forward.name,
        reseed=(lambda seed: examples(reseed(seed))) if reseed else None,
    )
