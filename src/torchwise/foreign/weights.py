"""Random weights that keep every part of a model alive, so that a mistake in any part shows in the answer.

A library initialises for training: biases at 0, gains at 1, the last gain of a residual branch at 0 or 1e-6 so that
the branch starts as nothing (https://arxiv.org/abs/1706.02677, https://arxiv.org/abs/2103.17239). Dropping, swapping or
miscomputing such a part changes no digit. Trained weights are not like that, and neither are the ones made here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

SPREAD = 0.1
"""Standard deviation of gains around their value."""
OFFSET = 0.02
"""Standard deviation of what started at zero; the one that transformers initialise with."""
FAINT = 0.1
"""A gain below this was meant to grow during training: it takes the value 1."""


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a module with its library's own initialisation, and spread every parameter that is constant.

    Args:
        make: the library's constructor; it draws from the global generator, which is put back afterwards.
        seed: of every draw. All are made on the CPU in float32, so that device and dtype change nothing.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(seed)  # of the CPU alone: `torch.manual_seed` would move those of GPUs
        model = make().float()
        for part in model.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                    _spread(name, parameter)
    return model.eval()


def calibrate(model: nn.Module, args: tuple[Any, ...]) -> None:
    """Give each BatchNorm the mean and variance of what reaches it when the model is called with `args`.

    Without that the running statistics are 0 and 1, and the signal grows or dies from layer to layer. One call, and
    only where there is a BatchNorm; everything else stays as it is in inference.
    """
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0  # the new statistics replace the old ones
        norm.train()
    with torch.no_grad():
        model(*args)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _spread(name: str, parameter: nn.Parameter) -> None:
    value = float(parameter.flatten()[0])
    noise = torch.randn(parameter.shape)
    gain = value != 0 or (parameter.dim() == 1 and name == "weight")
    if not gain:
        parameter.copy_(OFFSET * noise)
    else:
        parameter.copy_((value if abs(value) >= FAINT else 1.0) * (1 + SPREAD * noise))
