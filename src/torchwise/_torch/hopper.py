"""Whether a GPU has what came with NVIDIA's Hopper."""

from __future__ import annotations

import torch

CAPABILITY = (9, 0)
"""The first compute capability with clusters, and at which a kernel may start before the one ahead of it has ended."""


def is_hopper(device: torch.device | None = None) -> bool:
    """Whether a GPU, by default the current one, is of this capability or a later one."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
