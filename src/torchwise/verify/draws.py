"""Inputs to verify on: the examples themselves, and further draws of the same kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.workload.workload import Example, Workload

if TYPE_CHECKING:
    import torch


def draws(workload: Workload, count: int) -> list[Example]:
    """Return every example, then `count` further draws of each.

    A workload that can reseed draws its own. Otherwise the values of each floating tensor are shuffled, which keeps
    their distribution and range; whole numbers and booleans stay, as they may be indices, lengths or masks.
    """
    found = list(workload.examples)
    for seed in range(1, count + 1):
        if workload.reseed is not None:
            found += workload.reseed(1000 + seed)
        else:
            found += [_shuffled(example, seed) for example in workload.examples]
    return found


def _shuffled(example: Example, seed: int) -> Example:
    import torch

    def shuffle(tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() < 2:
            return tensor
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        shuffled = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        shuffled.copy_(tensor.detach().flatten()[order].view(tensor.shape))
        return shuffled.requires_grad_(tensor.requires_grad)

    return example.map_tensors(shuffle)
