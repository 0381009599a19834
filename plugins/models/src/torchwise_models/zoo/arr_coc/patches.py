"""Family `arr_coc`: patches of an image. Scenes are drawn with some busier than others, as in a photograph.

White noise would be equally relevant everywhere, and hide mistakes in code that ranks or weighs patches.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from torchwise.zoo.random_inputs import Draws

CHANNELS = 3
"""Red, green and blue."""


def features_of_scene(draws: Draws, batch: int, patches: int, width: int) -> torch.Tensor:
    """Draw features of patches, (batch, patches, width): normal, each patch of its own strength from 0.5 to 1.5."""
    return draws.normal(batch, patches, width) * draws.uniform(batch, patches, 1, low=0.5, high=1.5)


def image_of_scene(draws: Draws, batch: int, grid: int, patch: int) -> torch.Tensor:
    """Draw images, (batch, 3, grid · patch, grid · patch), of about unit variance, as normalised photographs have.

    Each patch has a colour and a texture, whose contrast goes from 0.1 to 1.
    """
    side = grid * patch
    colours = draws.normal(batch, CHANNELS, grid, grid, scale=0.8)
    contrasts = draws.uniform(batch, 1, grid, grid, low=0.1, high=1.0)
    return _enlarge(colours, patch) + _enlarge(contrasts, patch) * draws.normal(batch, CHANNELS, side, side)


def window_sum(plane: torch.Tensor, distance: int) -> torch.Tensor:
    """Sum over each element of (…, height, width) and its neighbours up to `distance`, with zeros outside.

    The zeros are put there first. The gradient of `avg_pool2d` is wrong on CUDA if it pads by itself and channels lie
    innermost (torch 2.11, https://github.com/pytorch/pytorch/issues/188344). Those of transposed features do.
    """
    padded = functional.pad(plane, (distance,) * 4)
    return functional.avg_pool2d(padded, 2 * distance + 1, stride=1, divisor_override=1)


def _enlarge(plane: torch.Tensor, factor: int) -> torch.Tensor:
    return plane.repeat_interleave(factor, dim=-2).repeat_interleave(factor, dim=-1)
