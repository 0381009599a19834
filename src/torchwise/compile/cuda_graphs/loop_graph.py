"""Iterations of a simulation step as one CUDA graph, which reads and writes one static state.

Nothing is copied between replays, and one launch does the work of a hundred steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchwise.compile.cuda_graphs.capture_errors import capture_error
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.compile.cuda_graphs.graph_key import is_on_gpu
from torchwise.compile.cuda_graphs.recorded_graph import Graph, record, static
from torchwise.compile.signature import is_strided, opaque_leaves
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.layouts import size_of

MAX_ITERATIONS = 100
MAX_LAUNCH_S = 0.02
"""Most host time of the steps in one graph: about 4000 kernels at 5 microseconds each.

Beyond it a graph gains nothing and takes long to record.
"""
MAX_KEPT_BYTES = 2**28
"""Most bytes of the snapshots inside one graph."""


def iterations(step_s: float, state: Any, every: int | None, most: int = MAX_ITERATIONS) -> tuple[int, int]:
    """Return the number of steps in one graph, and the steps between snapshots that it keeps inside (0 for none).

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
        return every // -(-every // most), 0  # equal parts of the steps between two snapshots, the rest step by step
    size = sum(map(size_of, pytree.tensors(state)))
    inside = max(1, min(most // every, MAX_KEPT_BYTES // max(size, 1)))
    return every * inside, every if inside > 1 else 0


class CapturedLoop:
    """Advances one static state by `length` steps, or by one, with one launch each.

    Random numbers are those that the same steps would draw one by one. It must be made and used in one grad mode. A
    step may take gradients within, but its states require none.

    Args:
        step: takes a state and returns the next. It is warm already.
        state: one that the step returned. It is copied.
        length: steps in one graph.
        inside: steps between the snapshots that the graph keeps, the last one left out, or 0 for none.
        pool: the memory pool of the graphs.
        stream: the side stream on which to record.

    Raises:
        UnsupportedError: the step cannot be captured, with the reason and the line.
    """

    def __init__(
        self, step: Callable[[Any], Any], state: Any, *, length: int, inside: int, pool: Any, stream: RecordingStream
    ) -> None:
        self.length = length
        self._check(state)
        self._state = pytree.map_tensors(static, state)
        self._tensors = pytree.tensors(self._state)
        self._step = step
        self._many = self._record_graph(length, inside, pool, stream)
        self._one = self._many if length == 1 else self._record_graph(1, 0, pool, stream)

    def enter(self, state: Any) -> None:
        """Take on the values of a state.

        Raises:
            UnsupportedError: two tensors of it share memory: a step that writes to one would change the other, too.
        """
        tensors = pytree.tensors(state)
        _check_no_overlap(tensors)
        for kept, given in zip(self._tensors, tensors, strict=True):
            kept.copy_(given)

    def many(self) -> list[Any]:
        """Advance by `length` steps, and return copies of the snapshots inside."""
        self._many.replay()
        snapshots: list[Any] = pytree.map_tensors(torch.Tensor.clone, self._many.outputs)
        return snapshots

    def one(self) -> None:
        """Advance by one step."""
        self._one.replay()

    def state(self) -> Any:
        """Return a copy of the state."""
        return pytree.map_tensors(torch.Tensor.clone, self._state)

    def _check(self, state: Any) -> None:
        if opaque := opaque_leaves(state):
            raise UnsupportedError(f"the state holds {opaque[0]}: what is in it could change without being seen")
        tensors = pytree.tensors(state)
        if outside := [t for t in tensors if not is_on_gpu(t)]:
            raise UnsupportedError(f"a tensor of the state lies on {outside[0].device}, out of a graph's reach")
        if not all(map(is_strided, tensors)):
            raise UnsupportedError("a tensor of the state is sparse or nested: a graph needs strided memory")
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError("a tensor of the state requires gradients, which no graph carries on: detach it")
        _check_no_overlap(tensors)

    def _record_graph(self, length: int, inside: int, pool: Any, stream: RecordingStream) -> Graph:
        recording = False

        def steps() -> list[Any]:
            if not recording:  # while `record` warms up: the step is warm, and would advance the state
                return []
            return self._steps(length, inside)

        def start_recording() -> None:
            nonlocal recording
            recording = True

        numbers = torch.get_rng_state()
        try:
            graph = record(steps, (), {}, pool=pool, stream=stream, settled=start_recording)
        except UnsupportedError:
            raise
        except Exception as error:  # after any error the loop goes on without a graph, with a reason in words
            raise capture_error(error, "the step") from error
        if not torch.equal(torch.get_rng_state(), numbers):
            torch.set_rng_state(numbers)
            raise UnsupportedError("the step draws random numbers on the CPU, which a replay repeats")
        return graph

    def _steps(self, length: int, inside: int) -> list[Any]:
        """Take `length` steps from the static state and leave the result in it."""
        snapshots = []
        state = self._state
        torch.clear_autocast_cache()  # that of an autocast around the loop: weights must be cast inside the graph
        for done in range(1, length + 1):
            state = self._step(state)
            if inside and done % inside == 0 and done < length:
                snapshots.append(pytree.map_tensors(torch.Tensor.clone, state))
        torch.clear_autocast_cache()
        new = pytree.tensors(state)
        own = _storages(self._tensors)
        # Tensors in the static state's memory, but in another's place (as in `return b, a`), are moved out first.
        new = [
            value.clone() if value is not kept and _storages([value]) <= own else value
            for kept, value in zip(self._tensors, new, strict=True)
        ]
        with torch.no_grad():
            for kept, value in zip(self._tensors, new, strict=True):
                kept.detach_()  # a step may ask for gradients of its inputs
                if value is not kept:
                    kept.copy_(value)
        return snapshots


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _check_no_overlap(tensors: list[torch.Tensor]) -> None:
    if find_overlaps(tensors):
        raise UnsupportedError("two tensors of the state share memory, and a graph has a copy of each: clone one")


def find_overlaps(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """List groups of two and more strided tensors whose memory overlaps, each in the order of memory."""
    found: list[list[torch.Tensor]] = []
    end = 0
    for tensor in sorted((t for t in tensors if t.numel()), key=torch.Tensor.data_ptr):
        first, last = span(tensor)
        if first < end:
            found[-1].append(tensor)
        else:
            found.append([tensor])
        end = max(end, last)
    return [several for several in found if len(several) > 1]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and the last address, exclusive, that a tensor reaches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
