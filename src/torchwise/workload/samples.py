"""Samples of a batch: calls are merged into one, and its answer is split again.

Any tree of tensors can be a call or an answer. The first dimension of each tensor is the batch.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.workload import pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""


def merge_calls(calls: list[Call], padding: int = 0) -> Call:
    """Return one call with the samples of all, and with `padding` repetitions of the last one."""
    columns: list[list[torch.Tensor]] = []
    for call in calls:
        columns.append([])
        pytree.map_tensors(columns[-1].append, call)
    merged = iter([_join(list(parts), padding).detach() for parts in zip(*columns, strict=True)])
    joined: Call = pytree.map_tensors(lambda _: next(merged), calls[0])
    return joined


def _join(parts: list[torch.Tensor], padding: int) -> torch.Tensor:
    last = parts[-1]
    if last.dim() == 0:
        return last
    return torch.cat([*parts, last[-1:].expand(padding, *last.shape[1:])])


def split_answer(answer: Any, sizes: list[int], total: int) -> list[Any]:
    """Return each call's own part of an answer for `total` samples, as copies that keep nothing else in memory.

    Raises:
        InputError: the answer holds anything but tensors with so many samples, or None.
    """
    for path, leaf in pytree.list_named_leaves(answer):
        shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None
        if leaf is not None and (not shape or shape[0] != total):
            found = f"type {type(leaf).__name__}" if shape is None else f"shape {shape}"
            name = f"output {path}" if path else "the output"
            raise InputError(f"{name} is of {found}, but must be a tensor with {total} samples to be split")
    ends = itertools.accumulate(sizes)
    return [take_samples(answer, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def take_samples(tree: Any, span: slice) -> Any:
    """Return some samples of a tree, as copies. Tensors without a dimension stay whole."""
    return pytree.map_tensors(lambda tensor: tensor[span].clone() if tensor.dim() else tensor.clone(), tree)
