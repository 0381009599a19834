"""What a type checker must refuse. Nothing here is run: `mypy` fails where an ignored error is none."""

from __future__ import annotations

import torch

import torchwise
import torchwise.training
from torchwise import TrainStep


def refuse_misspelt_options(model: torch.nn.Module, step: TrainStep, x: torch.Tensor) -> None:
    """Use option names that do not exist."""
    torchwise.tune(model, x, effrt="quick")  # type: ignore[call-arg]
    torchwise.optimize(model, x, effrt="quick")  # type: ignore[call-overload]
    torchwise.optimize(step, (x, x), effrt="quick")  # type: ignore[call-overload]
    torchwise.training.optimize(step, (x, x), effrt="quick")  # type: ignore[call-arg]


def refuse_other_values(model: torch.nn.Module, step: TrainStep, x: torch.Tensor) -> None:
    """Use values that an option does not have."""
    torchwise.tune(model, x, effort="fast")  # type: ignore[arg-type]
    torchwise.optimize(model, x, effort="fast")  # type: ignore[call-overload]
    torchwise.optimize(model, x, allow="anything")  # type: ignore[call-overload]
    torchwise.training.tune(step, (x, x), mode="inferring")  # type: ignore[arg-type]


def accept_right_options(model: torch.nn.Module, step: TrainStep, x: torch.Tensor) -> None:
    """Use every option rightly."""
    torchwise.optimize(
        model,
        x,
        calls=10,
        restarts=2,
        allow="lower-precision",
        effort="thorough",
        budget=60.0,
        objective="throughput",
        mode="inference",
        device="cpu",
        plans=[torchwise.Plan(backend="inductor")],
        memory_limit=1 << 30,
        latency_limit="20ms",
        batch="best",
        store="here.db",
        fresh=True,
        cold=False,
        progress=False,
        background=True,
    )
    torchwise.training.optimize(step, (x, x), patience=10.0, calls=10, effort="quick")
