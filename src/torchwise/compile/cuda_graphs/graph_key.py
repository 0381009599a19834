"""The key of a recorded graph: the conditions under which it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchwise._torch.dispatch import is_transforming
from torchwise.compile.signature import Signature, signature_of

DEVICE = "cuda"
"""The device of graphs."""

GraphKey = tuple[Signature, torch.dtype | None, bool]
"""The signature of the inputs, the dtype of autocast if it is enabled, and whether gradients are enabled."""


def graph_key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphKey:
    """Return the key that selects among graphs."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return signature_of(args, dict(kwargs)), autocast, torch.is_grad_enabled()


def is_unavailable() -> bool:
    """Whether no graph may answer now: a graph is being recorded, or a function transform (vmap, jvp) is active."""
    if is_transforming():
        return True
    return torch.cuda.is_current_stream_capturing()


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a graph can reach a tensor."""
    return tensor.device.type == DEVICE
