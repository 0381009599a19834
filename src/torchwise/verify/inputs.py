"""Inputs to verify on: the examples themselves, and further draws of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from torchwise.workload import pytree
from torchwise.workload.layouts import is_strided
from torchwise.workload.module_state import kept_state, preserve_generators
from torchwise.workload.workload import Example, Workload


def draws(workload: Workload, count: int) -> list[Example]:
    """Return every example, then `count` further draws of each, as far as the model accepts them.

    A workload that can reseed draws its own. Otherwise the values of each floating tensor are shuffled, which keeps
    their distribution and range. Whole numbers and booleans stay, as they may be indices, lengths or masks. So do
    tensors that are not strided, and those whose elements share memory, unless they are merely expanded.
    """
    return [*workload.examples, *further(workload, range(1, count + 1))]


def further(workload: Workload, seeds: Iterable[int]) -> Iterator[Example]:
    """Yield a draw of each example for each seed, without shuffled ones that the plain model refuses.

    A model may check its inputs: that probabilities sum to 1, or that times rise.
    """
    if workload.reseed is not None:
        yield from (example for seed in seeds for example in workload.reseed(1000 + seed))
        return
    takes = _trial_of(workload)
    yield from (drawn for seed in seeds for e in workload.examples if takes(drawn := _shuffle_example(e, seed)))


def _trial_of(workload: Workload) -> Callable[[Example], bool]:
    """Return a function that tells whether the model accepts an example, without changing any state."""
    step = workload.step.copy() if workload.step else None
    put_back = step.snapshot() if step else lambda: None
    call = step or workload.call

    def takes(example: Example) -> bool:
        copy = example.clone()
        device = "cuda" if any(tensor.is_cuda for tensor in copy.tensors()) else "cpu"
        kept = kept_state(None if step else call, copy.args, copy.kwargs)
        try:
            with preserve_generators(device), kept, torch.set_grad_enabled(step is not None):
                call(*copy.args, **copy.kwargs)
        except Exception:  # the user's model may refuse made-up values in any way
            return False
        finally:
            put_back()
        return True

    return takes


def _shuffle_example(example: Example, seed: int) -> Example:
    """Return a copy with shuffled values, in which tensors share the same memory as in the example."""
    drawn = example.clone()
    for tensor in {id(tensor): tensor for tensor in drawn.tensors()}.values():
        _shuffle(tensor.detach(), seed)
    return drawn


def _shuffle(tensor: torch.Tensor, seed: int) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not is_strided(tensor):
        return
    base = pytree.base_of(tensor)
    if base.numel() < 2 or _overlaps(base):
        return
    if base.element_size() == 1:  # float8: shuffled as the bytes that they are
        base = base.view(torch.uint8)
    order = torch.randperm(base.numel(), generator=torch.Generator().manual_seed(seed)).to(base.device)
    base.copy_(base.flatten()[order].view(base.shape))


def _overlaps(tensor: torch.Tensor) -> bool:
    """Say whether some elements must share memory, as in the windows that `Tensor.unfold` gives."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > span
