"""The memory format of a plan, which lays out tensors of one rank."""

from __future__ import annotations

import torch


def layout_for(memory_format: str, tensor: torch.Tensor) -> torch.memory_format | None:
    """Return the layout of a tensor under a plan's memory format, or None if it stays as it is.

    Compilers trace this.
    """
    if memory_format == "channels_last" and tensor.dim() == 4:
        return torch.channels_last
    if memory_format == "channels_last_3d" and tensor.dim() == 5:
        return torch.channels_last_3d
    return None


def lay_out(memory_format: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a plan's memory format: itself if it has that, or if its rank has no layout there."""
    layout = layout_for(memory_format, tensor)
    return tensor if layout is None else tensor.contiguous(memory_format=layout)
