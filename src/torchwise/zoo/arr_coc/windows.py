"""Family `arr_coc`: sums over the square windows of a plane."""

from __future__ import annotations

import torch
from torch.nn import functional


def window_sum(plane: torch.Tensor, distance: int) -> torch.Tensor:
    """Sum over each element of (…, height, width) and its neighbours up to `distance`, with zeros outside.

    The zeros are put there first. The gradient of `avg_pool2d` is wrong on CUDA if it pads by itself and channels lie
    innermost (torch 2.11, https://github.com/pytorch/pytorch/issues/188344). Those of transposed features do.
    """
    padded = functional.pad(plane, (distance,) * 4)
    return functional.avg_pool2d(padded, 2 * distance + 1, stride=1, divisor_override=1)
