"""Try the plan on another batch size: the examples grow or shrink along their batch, the rest is as in a trial."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchwise.diagnose.analysis.job import Scaling
from torchwise.errors import UnsupportedError, WorkloadError, is_count
from torchwise.trial.job import Attempt
from torchwise.workload import Example, Workload, pytree


@dataclass(frozen=True, slots=True)
class BatchDim:
    """The dimension of the batch, and its size in the first example."""

    dim: int
    size: int


def find(scaling: Scaling, stage: Callable[[str], None]) -> BatchDim:
    """Find the batch dimension, or check the named one.

    A batch is a dimension in which every tensor of the inputs has the same size. If none is named, the outputs must
    grow with it as well. Otherwise it may be a sequence, or a matrix without a batch.

    Raises:
        UnsupportedError: there is none, as the message explains.
    """
    from torchwise.trial.loading import load

    workload = load(scaling.job)
    batch = batch_of(workload.examples[0], scaling.dim)
    if scaling.dim is None:
        stage("find the batch dimension")
        _check_outputs(workload, batch)
    return batch


def attempt_at(scaling: Scaling, stage: Callable[[str], None]) -> Attempt:
    """Try the plan on the first example at the requested batch size: compiled, verified, and timed against eager."""
    from torchwise.trial import candidate
    from torchwise.trial.loading import load, save

    assert scaling.size is not None, "a scaling without a size only finds the dimension"
    workload = load(scaling.job)
    dim = batch_of(workload.examples[0], scaling.dim).dim
    workload = replace(workload, examples=(resize_example(workload.examples[0], dim, scaling.size),), reseed=None)
    with tempfile.TemporaryDirectory(prefix="torchwise-batch-") as folder:
        source = str(Path(folder, "model.pt"))
        save(workload, source)
        del workload  # the trial loads its own model: two may not fit in memory where one does
        return candidate.attempt(replace(scaling.job, source=source), stage)


def batch_of(example: Example, dim: int | None) -> BatchDim:
    """Return the dimension that every tensor of the inputs shares, or 0 if none is named.

    Raises:
        UnsupportedError: there is none.
    """
    tensors = _tensors(example)
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


def _check_outputs(workload: Workload, batch: BatchDim) -> None:
    """Run the model on one item more than the inputs hold.

    Raises:
        UnsupportedError: it does not run, or no output grows by an item.
    """
    more = resize_example(workload.examples[0], batch.dim, batch.size + 1)
    try:
        with torch.no_grad():
            outputs = workload.call(*more.args, **more.kwargs)
    except Exception as error:  # the user's model may raise anything on inputs that it was not made for
        raise UnsupportedError(
            f"the model raises {type(error).__name__} on {batch.size + 1} items instead of {batch.size} along "
            f"dimension {batch.dim}: {error}"
        ) from error
    if not any(batch.size + 1 in tensor.shape for tensor in pytree.tensors(outputs)):
        raise UnsupportedError(
            f"no output grows with dimension {batch.dim} of the inputs, so it may be no batch: if it is one, pass "
            f"--batch-dim {batch.dim}"
        )


def _tensors(example: Example) -> list[Any]:
    return [t for t in example.tensors() if t.dim()]


def check_sizes(sizes: tuple[int, ...]) -> None:
    """Refuse values that are no batch sizes.

    Raises:
        WorkloadError: a size is no whole number of at least 1.
    """
    for size in sizes:
        if not is_count(size):
            raise WorkloadError(f"batch size is {size!r}, but must be a whole number of at least 1")
