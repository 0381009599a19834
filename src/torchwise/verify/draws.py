"""Inputs to verify on: the examples themselves, and further draws of the same kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.workload import trees
from torchwise.workload.workload import Example, Workload

if TYPE_CHECKING:
    import torch


def draws(workload: Workload, count: int) -> list[Example]:
    """Return every example, then `count` further draws of each.

    A workload that can reseed draws its own. Otherwise the values of each floating tensor are shuffled, which keeps
    their distribution and range; whole numbers and booleans stay, as they may be indices, lengths or masks. So do
    tensors that are not strided, and those whose elements share memory otherwise than by being expanded.
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
        floating = tensor.is_floating_point() or tensor.is_complex()
        if not floating or tensor.layout is not torch.strided or tensor.is_nested:
            return tensor
        base = trees.base_of(tensor.detach())
        if base.numel() < 2 or _overlaps(base):
            return tensor
        if base.element_size() == 1:  # float8: shuffled as the bytes that they are
            base = base.view(torch.uint8)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(base.numel(), generator=generator).to(base.device)
        shuffled = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
        shuffled.copy_(base.flatten()[order].view(base.shape))
        return shuffled.view(tensor.dtype).expand(tensor.shape).requires_grad_(tensor.requires_grad)

    return example.map_tensors(shuffle)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Say whether some elements must share memory, as in the windows that `Tensor.unfold` gives."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > span
