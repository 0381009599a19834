"""Capture iterations of a simulation step in one CUDA graph, which reads and writes one static state.

Nothing is copied between replays, and one launch runs up to a hundred steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchwise.compile.cuda_graphs.capture_errors import explain_failure
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.recorded_graph import copy_outputs, is_on_gpu, static
from torchwise.compile.signature import is_strided, opaque_leaves
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.layouts import reach_of, size_of

MAX_ITERATIONS = 100
MAX_LAUNCH_S = 0.02
"""Maximum host time, in seconds, of the steps in one graph: about 4000 kernels at 5 microseconds each.

A longer graph saves nothing more and takes long to record.
"""
MAX_KEPT_BYTES = 2**28
"""Maximum bytes of the snapshots inside one graph."""


def iterations(step_s: float, state: Any, every: int | None, most: int = MAX_ITERATIONS) -> tuple[int, int]:
    """Return the number of steps in one graph, and the steps between the snapshots inside it (0 for none).

    Args:
        step_s: seconds of host time that one step takes.
        state: the state, for the size of a snapshot.
        every: steps between snapshots, or None.
        most: the upper limit of steps.
    """
    most = max(1, min(most, int(MAX_LAUNCH_S / max(step_s, 1e-9))))
    if every is None:
        return most, 0
    if every > most:
        return every // -(-every // most), 0  # equal parts of the interval between two snapshots, the rest step by step
    size = sum(map(size_of, pytree.tensors(state)))
    inside = max(1, min(most // every, MAX_KEPT_BYTES // max(size, 1)))
    return every * inside, every if inside > 1 else 0


class CapturedLoop:
    """Advances one static state by `length` steps, or by one, with one launch each.

    Random numbers are those that the same steps would draw one by one. Create and use it in the same grad mode. A step
    may compute gradients inside, but its states require none.

    Args:
        step: takes a state and returns the next. It is already warm.
        state: a state that the step returned. It is copied.
        length: steps in one graph.
        inside: steps between the snapshots inside the graph, without the last one, or 0 for none.
        pool: where the graphs are recorded.

    Attributes:
        one: advances by one step.

    Raises:
        UnsupportedError: the step cannot be captured, with the reason and the line.
    """

    def __init__(self, step: Callable[[Any], Any], state: Any, *, length: int, inside: int, pool: GraphPool) -> None:
        self.length = length
        self._check(state)
        self._state = pytree.map_tensors(static, state)
        self._tensors = pytree.tensors(self._state)
        self._step = step
        self._many, self._snapshots = self._record(length, inside, pool)
        self.one = self._many if length == 1 else self._record(1, 0, pool)[0]

    def enter(self, state: Any) -> None:
        """Copy the values of a state into the static state.

        It is refused if two tensors of it share memory, as a step that writes to one would change the other, too.
        """
        tensors = pytree.tensors(state)
        _check_no_overlap(tensors)
        for static_tensor, tensor in zip(self._tensors, tensors, strict=True):
            static_tensor.copy_(tensor)

    def many(self) -> list[Any]:
        """Advance by `length` steps, and return copies of the snapshots inside."""
        self._many()
        return list(map(copy_outputs, self._snapshots))

    def state(self) -> Any:
        """Return a copy of the state."""
        return copy_outputs(self._state)

    def _check(self, state: Any) -> None:
        if opaque := opaque_leaves(state):
            raise UnsupportedError(f"the state holds {opaque[0]}, whose contents could change unnoticed")
        tensors = pytree.tensors(state)
        if outside := [t for t in tensors if not is_on_gpu(t)]:
            raise UnsupportedError(f"a tensor of the state is on {outside[0].device}, but a graph needs it on the GPU")
        if not all(map(is_strided, tensors)):
            raise UnsupportedError("a tensor of the state is sparse or nested: a graph needs strided memory")
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError("a tensor of the state requires gradients, which no graph records: detach it")
        _check_no_overlap(tensors)

    def _record(self, length: int, inside: int, pool: GraphPool) -> tuple[Callable[[], None], list[Any]]:
        numbers = torch.get_rng_state()
        with explain_failure("the step"):  # after any error the loop continues without a graph, and reports the reason
            recorded = pool.record_in_place(self._steps, (length, inside), {}, None)
        if not torch.equal(torch.get_rng_state(), numbers):
            torch.set_rng_state(numbers)
            raise UnsupportedError("the step draws random numbers on the CPU, but a replay would repeat them")
        return recorded

    def _steps(self, length: int, inside: int) -> list[Any]:
        """Run `length` steps from the static state and write the result to it."""
        snapshots = []
        state = self._state
        torch.clear_autocast_cache()  # of an autocast around the loop: weights must be cast inside the graph
        for done in range(1, length + 1):
            state = self._step(state)
            if inside and done % inside == 0 and done < length:
                snapshots.append(pytree.map_tensors(torch.Tensor.clone, state))
        torch.clear_autocast_cache()
        new = pytree.tensors(state)
        own = _storages(self._tensors)
        # Tensors in the static state's memory, but at another position (as in `return b, a`), are copied first.
        new = [
            value.clone() if value is not kept and _storages([value]) <= own else value
            for kept, value in zip(self._tensors, new, strict=True)
        ]
        with torch.no_grad():
            for kept, value in zip(self._tensors, new, strict=True):
                kept.detach_()  # a step may require gradients of its inputs
                if value is not kept:
                    kept.copy_(value)
        return snapshots


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _check_no_overlap(tensors: list[torch.Tensor]) -> None:
    if find_overlaps(tensors):
        raise UnsupportedError("two tensors of the state share memory, but a graph has a copy of each: clone one")


def find_overlaps(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """List groups of two and more strided tensors whose memory overlaps, each in the order of memory."""
    groups: list[list[torch.Tensor]] = []
    end = 0
    for tensor in sorted((t for t in tensors if t.numel()), key=torch.Tensor.data_ptr):
        first, last = span(tensor)
        if first < end:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
        end = max(end, last)
    return [group for group in groups if len(group) > 1]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a tensor's first address, and the address after its last."""
    return tensor.data_ptr(), tensor.data_ptr() + reach_of(tensor)
