"""Calls that join in a batch: which may, when they do, and to which sizes batches are filled up.

Calls join if they differ in nothing but their number of samples and the values of their tensors, and if samples of
such calls were verified not to depend on each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import InputError, QueueFullError, TorchwiseError, format_error
from torchwise.records import Decision
from torchwise.runtime.bucketing.dispatch import Buckets
from torchwise.runtime.bucketing.padding import Padder
from torchwise.runtime.served import Served, served_of
from torchwise.verify import verify_samples
from torchwise.workload import Example, pytree
from torchwise.workload.identity import specify_inputs
from torchwise.workload.input_spec import TensorSpec, parse_inputs
from torchwise.workload.layouts import is_strided
from torchwise.workload.samples import Call

MAX_FORMS = 100
"""Forms of calls that are known to join or not. Values that are no tensors belong to a form, so there may be many."""
Prepared = tuple[Call, Callable[[Any], Any]]


class Same:
    """Stands for one object in a form, and holds it so that no other takes its address."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


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
    """The order of the requests, without threads or a clock: a batch is due if it is full or its first one is late.

    Attributes:
        samples: the samples that wait.
    """

    def __init__(self, max_batch: int, max_wait_s: float, max_waiting: int) -> None:
        self._max_batch, self._max_wait_s, self._max_waiting = max_batch, max_wait_s, max_waiting
        self._groups: dict[Hashable, deque[Request]] = {}
        self.samples = 0

    def put(self, request: Request) -> None:
        """Add a request.

        Raises:
            QueueFullError: too many samples are waiting.
        """
        if self.samples + request.size > self._max_waiting:
            rule = f"at most {self._max_waiting} may: send the request again later"
            raise QueueFullError(f"{self.samples} samples are waiting, but {rule}")
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
        InputError: the tensors have no common first dimension, it is empty, or one is not dense.
    """
    sizes: dict[str, int] = {}
    kinds: list[Hashable] = [pytree.form(call)]
    for path, leaf in pytree.list_named_leaves(call):
        if isinstance(leaf, torch.Tensor) and not is_strided(leaf):
            kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.")
            raise InputError(f"{path} of the request is a {kind} tensor, but samples are joined only in dense ones")
        if not isinstance(leaf, torch.Tensor):  # of objects, only the same one is known to be equal
            kinds.append((path, type(leaf), leaf if type(leaf) in pytree.PLAIN else Same(leaf)))
        elif leaf.dim() == 0:
            kinds.append((path, leaf.dtype, leaf.device, leaf.item()))
        else:
            sizes[path] = leaf.shape[0]
            kinds.append((path, leaf.dtype, leaf.device, leaf.shape[1:]))
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        found = ", ".join(f"{size} in {path}" for path, size in sizes.items()) or "no tensor with a dimension"
        raise InputError(f"the request has {found}, but each tensor must have its samples along the first dimension")
    return next(iter(sizes.values())), tuple(kinds)


def list_trained_parts(model: Callable[..., Any]) -> tuple[int, ...]:
    """Return the places of the parts in training mode, in which samples may depend on each other."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else [model]
    return tuple(place for place, part in enumerate(parts) if getattr(part, "training", False))


class Preparation:
    """Pads calls to the buckets of a plan, if it has any, so that calls of one bucket share a batch.

    Args:
        fast: the model, with or without a plan.
    """

    def __init__(self, fast: Callable[..., Any]) -> None:
        served = served_of(fast)
        self._served = served if isinstance(served, Buckets) and not pads_batch(served) else None
        if self._served is not None:
            self._padder = Padder(self._served.original, self._served.verified.padding)

    def pad(self, call: Call) -> Prepared:
        """Pad a call to the bucket that fits it, and also return what cuts the answer back."""
        as_it_came = call, lambda answer: answer
        if self._served is None or self._served.find_unlike(*call) is not None:
            return as_it_came
        padder, verified = self._padder, self._served.verified
        try:
            size = padder.size_of(*call)
        except InputError:  # such as one input of another size: the plan lets the model answer it
            return as_it_came
        bucket = next((bucket for bucket in verified.buckets if bucket >= size), size)
        if bucket == size or size < verified.padding.least:
            return as_it_came
        return padder.pad(*call, bucket - size), lambda answer: padder.cut(answer, size, bucket)

    def refuses(self, call: Call) -> bool:
        """Return whether no padded call may run now, as the model changed since padding was verified."""
        return self._served is not None and self._served.find_unpaddable(*call) is not None


def pads_batch(served: Served | None) -> bool:
    """Return whether the buckets of a plan are batch sizes, so that it pads a batch itself."""
    if not isinstance(served, Buckets):
        return False
    return any(0 in carrier.dims for carrier in Padder(served.original, served.verified.padding).carriers)


def list_verified_sizes(decision: Decision) -> tuple[int, ...]:
    """Return the batch sizes that a decision was made at, ascending."""
    lines = map(parse_inputs, decision.inputs)
    shapes = [[one.value.shape for one in line.leaves if isinstance(one.value, TensorSpec)] for line in lines]
    firsts = [{shape[0] for shape in found if shape} for found in shapes]
    return tuple(sorted({first for found in firsts if len(found) == 1 for first in found}))


class JoinRules:
    """Which calls may join: those whose samples were verified not to depend on each other.

    Args:
        model: the original model.
        verified: the inputs that a search has verified with the model in evaluation mode, or None if all calls may
            join.
    """

    def __init__(self, model: Callable[..., Any], verified: Sequence[str] | None) -> None:
        self._model, self._may_all_join = model, verified is None
        lines = map(parse_inputs, verified or ())
        self._found: dict[Hashable, bool] = {(line.strip_sizes(), (), ()): True for line in lines}

    def find_dependence(self, call: Call) -> str | None:
        """Return why the samples of calls like this may not share a batch, "" if that was said before, or None."""
        if self._may_all_join:
            return None
        form = self._form_of(call)
        if (known := self._found.get(form)) is not None:
            return None if known else ""
        try:
            verify_samples(self._model, Example(*call), in_float64=False)  # for which requests would need memory
        except Exception as error:  # a model may raise anything on a batch
            self._keep(form, may_join=False)
            return str(error) if isinstance(error, TorchwiseError) else format_error(error)
        self._keep(form, may_join=True)
        return None

    def accept(self, call: Call) -> None:
        """Take calls like this as verified."""
        self._keep(self._form_of(call), may_join=True)

    def forget(self, call: Call) -> None:
        """Verify calls like this again, as this one raises by itself."""
        self._found.pop(self._form_of(call), None)

    def _form_of(self, call: Call) -> Hashable:
        """Return the form of a call without its sizes, with the parts in training and what a line does not tell."""
        more: list[Hashable] = []
        for path, leaf in pytree.list_named_leaves(call):
            if not isinstance(leaf, torch.Tensor) and type(leaf) not in pytree.PLAIN:
                more.append((path, Same(leaf)))
            elif isinstance(leaf, torch.Tensor) and leaf.dim() == 0:
                more.append((path, leaf.item()))
        return specify_inputs(Example(*call)).strip_sizes(), list_trained_parts(self._model), tuple(more)

    def _keep(self, form: Hashable, *, may_join: bool) -> None:
        if len(self._found) >= MAX_FORMS:
            self._found.clear()
        self._found[form] = may_join
