"""The batch of a workload's inputs: which dimension it is, and the same inputs at another size."""

from __future__ import annotations

from dataclasses import replace

import torch

from torchwise.errors import UnsupportedError
from torchwise.plan.workload_spec import BatchDim
from torchwise.workload.workload import Example, Workload


def batch_of(example: Example, dim: int | None) -> BatchDim:
    """Return the dimension that every tensor of the inputs shares, or 0 if none is named.

    Raises:
        UnsupportedError: there is none.
    """
    tensors = [tensor for tensor in example.tensors() if tensor.dim()]
    if not tensors:
        raise UnsupportedError("the inputs hold no tensor with a dimension, so there is no batch to scale")
    batch_dim = 0 if dim is None else dim
    for tensor in tensors:
        if not -tensor.dim() <= batch_dim < tensor.dim():
            raise UnsupportedError(
                f"an input of shape {tuple(tensor.shape)} has no dimension {batch_dim}: name another with --batch-dim"
            )
    sizes = sorted({tensor.shape[batch_dim] for tensor in tensors})
    if len(sizes) > 1:
        raise UnsupportedError(
            f"the inputs differ in dimension {batch_dim} (sizes {', '.join(map(str, sizes))}), so it is no common "
            "batch: name the batch dimension with --batch-dim"
        )
    if sizes[0] == 0:
        raise UnsupportedError(
            f"dimension {batch_dim} of the inputs is empty, so there is nothing to make batches from"
        )
    return BatchDim(batch_dim, sizes[0])


def scale_batch(workload: Workload, batch: BatchDim) -> Workload:
    """Return the workload on its first example alone, at another batch size."""
    example = resize_example(workload.examples[0], batch.dim, batch.size)
    return replace(workload, examples=(example,), roofline=None, reseed=None)


def resize_example(example: Example, dim: int, size: int) -> Example:
    """Return the example with its items along `dim` repeated or left out until there are `size`.

    The values stay the same: indices stay in their range, and masks stay masks.
    """

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0:
            return tensor
        items = torch.arange(size, device=tensor.device) % tensor.shape[dim]
        return tensor.detach().index_select(dim, items).requires_grad_(tensor.requires_grad)

    return example.map_tensors(resize)
