"""Make other inputs of the values that an example has, for programs whose inputs only an example describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from torchwise.verify.observe import further, make_trial, overlaps
from torchwise.workload import pytree
from torchwise.workload.workload import Example, Workload

Change = Callable[[torch.Tensor], torch.Tensor]
LITTLE = (9e-6, 2e-4)
"""Relative changes that a key with a tolerance overlooks: one of `allclose`, and one of values cut to three digits."""


def redraw_examples(workload: Workload, seeds: Sequence[int]) -> list[Example]:
    """Return a draw of each example for each seed, as far as the reference accepts it.

    A workload that can reseed draws its own. Otherwise each tensor takes values of its own at random, some of them
    more than once. If the reference refuses them, they are only shuffled, and whole numbers stay.
    """
    if workload.reseed is not None:
        return list(further(workload, seeds))
    takes = make_trial(workload)
    drawn = [
        found
        for seed in seeds
        for example in workload.examples
        if takes(found := _draw_own_values(example, torch.Generator().manual_seed(seed)))
    ]
    return drawn or list(further(workload, seeds))


def _draw_own_values(example: Example, generator: torch.Generator) -> Example:
    """Return a copy with other values, in which tensors share the same memory as in the example."""
    drawn = example.clone()
    for tensor in {id(tensor): tensor for tensor in drawn.tensors()}.values():
        if tensor.layout is torch.strided and not tensor.is_nested:
            base = pytree.base_of(tensor.detach())
            if base.numel() > 1 and not overlaps(base):
                base.copy_(_draw_tensor(base, generator))
    return drawn


def _draw_tensor(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return values of a tensor at random, in which offsets and masks keep their meanings."""
    device = tensor.device
    if _is_mask(tensor):  # shuffled within each row, as a row that is masked out as a whole has no answer
        order = torch.rand(tensor.shape, generator=generator).argsort(dim=-1).to(device)
        return tensor.gather(-1, order)
    places = torch.randint(tensor.numel(), (tensor.numel(),), generator=generator).to(device)
    bits = tensor.contiguous().view(torch.uint8) if tensor.element_size() == 1 else tensor  # float8 has no index
    found = bits.flatten()[places].view(tensor.shape).view(tensor.dtype)
    if is_rising(tensor):  # offsets, which begin and end at places of their own
        found = found.sort(dim=-1).values
        found[..., 0], found[..., -1] = tensor[..., 0], tensor[..., -1]
    return found


def _is_mask(tensor: torch.Tensor) -> bool:
    is_floating = tensor.is_floating_point() and tensor.element_size() > 1
    return tensor.dtype is torch.bool or (is_floating and bool(tensor.isneginf().any()))


def is_rising(tensor: torch.Tensor) -> bool:
    """Whether whole numbers rise along their last dimension, as offsets and positions do."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    if not is_whole or tensor.dim() == 0 or tensor.shape[-1] < 2:
        return False
    return bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def is_alike(one: Example, other: Example) -> bool:
    """Whether two examples hold the same values."""
    return all(pytree.equal(a, b) for a, b in pair_tensors(one, other))


def list_near(example: Example, seed: int = 0) -> tuple[Example, ...]:
    """Return inputs that a careless key takes for the same.

    Values are permuted, the last one differs, or one at a place that the seed decides, or all by less than a tolerance.
    """
    generator = torch.Generator().manual_seed(seed % 2**31)
    found = []
    one = partial(_change_one, generator=generator)
    changes: list[Change] = [_permute, _change_last, one, *(partial(_change_little, by=by) for by in LITTLE)]
    for change in changes:
        near = example.map_tensors(keep_gradient(change))
        if not is_alike(near, example):
            found.append(near)
    return tuple(found)


def pair_tensors(one: Example, other: Example) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the strided tensors of two examples in pairs."""
    pairs = zip(one.tensors(), other.tensors(), strict=True)
    return ((a, b) for a, b in pairs if a.layout is torch.strided and b.layout is torch.strided)


def keep_gradient(function: Change) -> Change:
    """Return a function of tensors whose results require gradients where its inputs do."""
    return lambda tensor: function(tensor.detach()).requires_grad_(tensor.requires_grad)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, a dimension and strides."""
    return tensor.layout is torch.strided and tensor.dim() > 0 and tensor.numel() > 0


def _can_change(tensor: torch.Tensor) -> bool:
    """Whether single values may be exchanged: not in masks, and not in offsets."""
    is_wide = tensor.element_size() > 1 or not tensor.is_floating_point()
    return is_plain(tensor) and is_wide and not _is_mask(tensor) and not is_rising(tensor)


def _change_little(tensor: torch.Tensor, by: float) -> torch.Tensor:
    """Return values a little nearer to zero, of which none is beyond the others."""
    if not (_can_change(tensor) and tensor.is_floating_point() and bool(tensor.isfinite().all())):
        return tensor.clone()
    return pytree.copy_of(tensor).copy_((tensor * (1 - by)).clamp(tensor.min(), tensor.max()))


def _permute(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor in another order, but for the first quarter."""
    if not _can_change(tensor) or tensor.numel() < 3:
        return tensor.clone()
    flat = tensor.flatten().clone()
    kept = max(1, len(flat) // 4)
    flat[kept:] = flat[kept:].flip(0)
    return pytree.copy_of(tensor).copy_(flat.view(tensor.shape))


def _change_last(tensor: torch.Tensor) -> torch.Tensor:
    if not _can_change(tensor):
        return tensor.clone()
    changed = pytree.copy_of(tensor)
    changed[(-1,) * tensor.dim()] = tensor.flatten()[0]
    return changed


def _change_one(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Exchange one value for another one of the tensor."""
    if not _can_change(tensor):
        return tensor.clone()
    flat = tensor.flatten().clone()
    place = int(torch.randint(flat.numel(), (1,), generator=generator))
    others = flat[flat != flat[place]]
    if others.numel():
        flat[place] = others[int(torch.randint(others.numel(), (1,), generator=generator))]
    return pytree.copy_of(tensor).copy_(flat.view(tensor.shape))
