"""Calls that join in a batch: which may, when they do, how they are merged and padded, and how the answer is split.

Any tree of tensors can be a call, with keyword arguments. The first dimension of each tensor is the batch. Calls join
if they differ in nothing but their number of samples and the values of their tensors.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.runtime.bucketing.dispatch import Buckets
from torchwise.runtime.bucketing.padding import Padder
from torchwise.runtime.served import served_of
from torchwise.workload import pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]
Prepared = tuple[Call, Callable[[Any], Any]]


@dataclass(slots=True, eq=False)
class Request:
    """One request that waits: the call as it came and as it joins a batch, its samples, group and time of arrival."""

    given: Call
    call: Call
    size: int
    group: Hashable
    arrived_s: float
    finish: Callable[[Any], Any] = lambda answer: answer
    future: Future[Any] = field(default_factory=Future)


class BatchQueue:
    """The order of the requests, without threads or a clock: a batch is due if it is full or its first one is late."""

    def __init__(self, max_batch: int, max_wait_s: float) -> None:
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._groups: dict[Hashable, deque[Request]] = {}
        self.samples = 0

    def put(self, request: Request) -> None:
        """Add a request."""
        self._groups.setdefault(request.group, deque()).append(request)
        self.samples += request.size

    def take(self, now_s: float, *, at_once: bool = False) -> list[Request]:
        """Remove and return the requests of the next batch, or an empty list if none is due. `at_once`, all are due."""
        waiting = self._find_due(now_s, at_once)
        taken: list[Request] = []
        room = self._max_batch
        while waiting and waiting[0].size <= room:
            taken.append(waiting.popleft())
            room -= taken[-1].size
        if taken and not waiting:
            del self._groups[taken[0].group]
        self.samples -= sum(request.size for request in taken)
        return taken

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a batch is due if no further request comes, or None if none waits."""
        heads = [waiting[0].arrived_s for waiting in self._groups.values()]
        return max(0.0, min(heads) + self._max_wait_s - now_s) if heads else None

    def _find_due(self, now_s: float, at_once: bool) -> deque[Request] | None:
        oldest = min(self._groups.values(), key=lambda waiting: waiting[0].arrived_s, default=None)
        if oldest is None or at_once or now_s >= oldest[0].arrived_s + self._max_wait_s:
            return oldest
        full = (w for w in self._groups.values() if sum(request.size for request in w) >= self._max_batch)
        return next(full, None)


def inspect_call(call: Call) -> tuple[int, Hashable]:
    """Return the number of samples, and everything that calls of one batch have in common.

    Raises:
        InputError: the tensors have no common first dimension, or it is empty.
    """
    sizes: dict[str, int] = {}
    kinds: list[Hashable] = [pytree.form(call)]
    for path, leaf in pytree.list_named_leaves(call):
        if not isinstance(leaf, torch.Tensor):  # of objects, only the same one is known to be equal
            kinds.append((path, type(leaf), leaf if type(leaf) in pytree.PLAIN else id(leaf)))
        elif leaf.dim() == 0:
            kinds.append((path, leaf.dtype, leaf.device, leaf.item()))
        else:
            sizes[path] = leaf.shape[0]
            kinds.append((path, leaf.dtype, leaf.device, leaf.shape[1:]))
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        found = ", ".join(f"{size} in {path}" for path, size in sizes.items()) or "no tensor with a dimension"
        raise InputError(f"the request has {found}, but each tensor must have its samples along the first dimension")
    return next(iter(sizes.values())), tuple(kinds)


def merge_calls(calls: list[Call], padding: int) -> Call:
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
            raise InputError(f"output {path} is of {found}, but must be a tensor with {total} samples to be split")
    ends = itertools.accumulate(sizes)
    return [_take(answer, slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def _take(answer: Any, span: slice) -> Any:
    return pytree.map_tensors(lambda tensor: tensor[span].clone(), answer)


def find_preparation(fast: Callable[..., Any]) -> Callable[[Call], Prepared]:
    """Return a function that pads a call to the bucket that fits it, and also returns what cuts the answer back."""
    served = served_of(fast)
    if not isinstance(served, Buckets) or pads_batch(fast):
        return lambda call: (call, lambda answer: answer)
    padder, verified = Padder(served.original, served.verified.padding), served.verified

    def prepare(call: Call) -> Prepared:
        try:
            size = padder.size_of(*call)
        except InputError:  # such as without the input that carries the size: the plan lets the model answer it
            return call, lambda answer: answer
        bucket = next((bucket for bucket in verified.buckets if bucket >= size), size)
        if bucket == size or size < verified.padding.least:
            return call, lambda answer: answer
        return padder.pad(*call, bucket - size), lambda answer: padder.cut(answer, size, bucket)

    return prepare


def pads_batch(fast: Callable[..., Any]) -> bool:
    """Return whether the buckets of a plan are batch sizes, so that it pads a batch itself."""
    served = served_of(fast)
    if not isinstance(served, Buckets):
        return False
    return any(0 in carrier.dims for carrier in Padder(served.original, served.verified.padding).carriers)
