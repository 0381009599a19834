"""Give a candidate the weights of its reference: by name, and a little off from those that both sides made."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.verify.witness import Witness, live_state_of, state_of

WEIGHT_CHANGE = 0.01
"""Relative change of a reference's weights before they are taken over."""


def share_weights(reference: Any, witness: Witness, seed: int) -> bool:
    """Change the reference's weights a little, if the candidate takes them over. Return whether it does.

    A candidate that keeps earlier weights is found out so. One with weights of other names keeps its own, and the
    reference must keep its own, too.
    """
    if not witness.adopt(state_of(reference)):
        return False
    vary_weights(reference, seed)
    return True


def vary_weights(call: Any, seed: int) -> None:
    """Change a model's weights a little."""
    if isinstance(call, torch.nn.Module):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in call.parameters():
                if weight.requires_grad and weight.is_floating_point():
                    factor = 1 + WEIGHT_CHANGE * torch.randn(weight.shape, generator=generator)
                    weight.mul_(factor.to(weight.device, weight.dtype))


def copy_weights(reference: Any, candidate: Any) -> None:
    """Give a model the weights and buffers of another one with the same names."""
    state, own = state_of(reference), live_state_of(candidate)
    if {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in own.items()}:
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
