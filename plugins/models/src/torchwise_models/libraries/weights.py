"""Make random weights that keep every part of a model active, so that a mistake in any part changes the output.

Libraries initialise for training: biases are 0, gains are 1, and the last gain of a residual branch is 0 or 1e-6
(https://arxiv.org/abs/1706.02677, https://arxiv.org/abs/2103.17239). The branch then contributes nothing at first, and
dropping, swapping or miscomputing such a part changes no digit. Trained weights do not have this problem, nor do the
weights made here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
SPREAD = 0.1
"""Standard deviation of gains around their value."""
OFFSET = 0.02
"""Standard deviation of parameters that started at zero. Transformers are initialised with the same one."""
FAINT = 0.1
"""A gain below this was meant to grow in training, and is set to 1."""


def make_seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Make a module with its library's own initialisation, and spread every parameter that is constant.

    Args:
        make: the library's constructor. It draws from the global generator, which is restored afterwards.
        seed: seed of every draw. All draws are on the CPU in float32, independent of device and dtype.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(seed)  # the CPU's only: `torch.manual_seed` would also seed GPUs
        model = make().float()
        for part in model.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                    _spread(name, parameter)
    return model.eval()


def calibrate(model: nn.Module, args: tuple[Any, ...]) -> None:
    """Set the statistics of each BatchNorm to those of its input in a call of the model with `args`.

    Otherwise the running statistics would be 0 and 1, and the signal would grow or vanish from layer to layer. This
    takes one call, and only if there is a BatchNorm. All other modules stay in inference mode.
    """
    norms = [part for part in model.modules() if isinstance(part, BATCH_NORMS) and part.track_running_stats]
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
