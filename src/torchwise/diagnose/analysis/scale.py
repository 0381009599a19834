"""Try the plan on another batch size: the examples grow or shrink along their batch, all else is as in a trial."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchwise.diagnose.analysis.job import Scaling
from torchwise.errors import UnsupportedError, WorkloadError, is_count
from torchwise.trial.job import Attempt
from torchwise.workload import Example, Workload, pytree

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Found:
    """The dimension of the batch, and its size in the first example."""

    dim: int
    size: int


def find(told: Scaling, stage: Callable[[str], None]) -> Found:
    """Find the batch dimension, or check the named one.

    A batch is a dimension in which every tensor of the inputs has the same size. If none is named, the outputs must
    grow with it as well. Otherwise it may be a sequence, or a matrix that is no batch at all.

    Raises:
        UnsupportedError: there is none, as the message explains.
    """
    from torchwise.trial.loading import load

    workload = load(told.job)
    found = batch_of(workload.examples[0], told.dim)
    if told.dim is None:
        stage("find the batch dimension")
        _check_outputs(workload, found)
    return found


def attempt_at(told: Scaling, stage: Callable[[str], None]) -> Attempt:
    """Try the plan on the first example at the requested batch size: compiled, verified, and timed against eager."""
    from torchwise.trial import candidate
    from torchwise.trial.loading import load, save

    assert told.size is not None, "a scaling without a size only finds the dimension"
    workload = load(told.job)
    dim = batch_of(workload.examples[0], told.dim).dim
    workload = replace(workload, examples=(resize_example(workload.examples[0], dim, told.size),), reseed=None)
    with tempfile.TemporaryDirectory(prefix="torchwise-batch-") as folder:
        source = str(Path(folder, "model.pt"))
        save(workload, source)
        del workload  # the trial loads its own model: two may not fit in memory where one does
        return candidate.attempt(replace(told.job, source=source), stage)


def batch_of(example: Example, dim: int | None) -> Found:
    """Return the dimension that every tensor of the inputs shares, or 0 if none is named.

    Raises:
        UnsupportedError: there is none.
    """
    tensors = _tensors(example)
    if not tensors:
        raise UnsupportedError("the inputs hold no tensor with a dimension, so there is no batch to scale")
    wanted = 0 if dim is None else dim
    for tensor in tensors:
        if not -tensor.dim() <= wanted < tensor.dim():
            raise UnsupportedError(
                f"an input of shape {tuple(tensor.shape)} has no dimension {wanted}: name another with --batch-dim"
            )
    sizes = sorted({tensor.shape[wanted] for tensor in tensors})
    if len(sizes) > 1:
        raise UnsupportedError(
            f"the inputs differ in dimension {wanted} (sizes {', '.join(map(str, sizes))}), so it is no batch of "
            "all of them: name the one that is with --batch-dim"
        )
    if sizes[0] == 0:
        raise UnsupportedError(f"dimension {wanted} of the inputs is empty, so there is nothing to make batches from")
    return Found(wanted, sizes[0])


def resize_example(example: Example, dim: int, size: int) -> Example:
    """Return the example with its items along `dim` repeated or left out until there are `size`.

    The values stay the same: indices stay in their range, and masks stay masks.
    """

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        import torch

        if tensor.dim() == 0:
            return tensor
        items = torch.arange(size, device=tensor.device) % tensor.shape[dim]
        return tensor.detach().index_select(dim, items).requires_grad_(tensor.requires_grad)

    return example.map_tensors(resize)


def _check_outputs(workload: Workload, found: Found) -> None:
    """Run the model on one item more than the inputs hold.

    Raises:
        UnsupportedError: it does not run, or no output grows by an item.
    """
    import torch

    more = resize_example(workload.examples[0], found.dim, found.size + 1)
    try:
        with torch.no_grad():
            outputs = workload.call(*more.args, **more.kwargs)
    except Exception as error:  # the user's model may raise anything on inputs that it was not made for
        raise UnsupportedError(
            f"on {found.size + 1} items instead of {found.size} along dimension {found.dim} the model raises "
            f"{type(error).__name__}: {error}"
        ) from error
    if not any(found.size + 1 in tensor.shape for tensor in pytree.tensors(outputs)):
        raise UnsupportedError(
            f"no output grows with dimension {found.dim} of the inputs, so it may be no batch: where it is one, say so "
            f"with --batch-dim {found.dim}"
        )


def _tensors(example: Example) -> list[Any]:
    return [t for t in example.tensors() if t.dim()]


def check_sizes(sizes: tuple[int, ...]) -> None:
    """Refuse values that are no batch sizes.

    Raises:
        WorkloadError: names the value.
    """
    for size in sizes:
        if not is_count(size):
            raise WorkloadError(f"batch size is {size!r}, but must be a whole number of at least 1")
