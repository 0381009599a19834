"""The loss that stands in for a training workload's own: every floating output enters, smoothly."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.workload import layouts, pytree


def loss_of(outputs: Any) -> torch.Tensor | None:
    """Return the sum over floating outputs of their mean square, or None if no output depends on a parameter.

    A lone scalar output counts as a loss already and is returned as it is.
    """
    parts = [part for t in pytree.tensors(outputs) if t.requires_grad for _, part in layouts.list_strided_parts(t)]
    found = [part for part in parts if part.requires_grad]
    if len(found) == 1 and found[0].dim() == 0 and found[0].is_floating_point():
        return found[0]
    terms = [(t.abs() if t.is_complex() else t).square().mean() for t in found]
    return torch.stack([term.double() for term in terms]).sum() if terms else None
