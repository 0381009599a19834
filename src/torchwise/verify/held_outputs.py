"""Keep outputs and gradients of a whole run, and find one that a later call changed."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.verify.leaves import leaves_of
from torchwise.verify.spot_check import OVERWRITTEN
from torchwise.workload import pytree

MAX_BYTES = 2**26
"""Memory for copies. A tensor that finds no room is not held."""


class HeldOutputs:
    """Tensors as a caller would keep them, each with a copy of its values at that time."""

    def __init__(self) -> None:
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._left = MAX_BYTES

    def hold(self, *answers: Any) -> None:
        """Keep the tensors of some answers, once their call is over and its state is restored."""
        for tensor in leaves_of(list(answers)).tensors:
            size = tensor.numel() * tensor.element_size()
            if 0 < size <= self._left:
                self._left -= size
                self._held.append((tensor.detach(), tensor.detach().clone()))

    def find_change(self) -> str:
        """Say that a tensor has other values than it had, or return ""."""
        is_changed = any(not pytree.equal(now, then) for now, then in self._held)
        return OVERWRITTEN if is_changed else ""
