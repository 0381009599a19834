"""Record one path through a call that reads GPU data: a CUDA graph for each segment between two reads.

During the recording, `bool(tensor)` ends a segment, replays it, and reads the value from the host's memory, where the
segment wrote it. So the model's Python code continues with the true value. Later the segments are replayed, and only
their values are read.

Operators whose number of elements depends on the data (`x[mask]`, `nonzero`, `unique`) read a count. Such an operator
runs between two segments, on each replay. Its result is copied to the memory that the next segment reads. Another
number of elements counts as another value.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.compile.cuda_graphs.capture_errors import place_of_caller
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.host_operators import reads_numbers, result_key
from torchwise.compile.cuda_graphs.host_values import HostValues, Operators
from torchwise.compile.cuda_graphs.recorded_graph import DEVICE, check_outputs
from torchwise.compile.tensor_reads import answering
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree


@dataclass(frozen=True, slots=True)
class Path:
    """A recorded path through a call.

    Attributes:
        answers: the values that the call read, in their order.
        pieces: the segments. Each replays the work before a read, and the last one the work after all reads.
        read: the reads. Each waits for the segment before it and returns its value.
        outputs: the call's outputs. The segments overwrite their tensors.
        computing: indices of the reads that also compute the inputs of the next segment.
    """

    answers: tuple[Hashable, ...]
    pieces: Sequence[Callable[[], None]]
    read: Sequence[Callable[[], Hashable]]
    outputs: Any
    computing: frozenset[int] = frozenset()


def record_path(call: Callable[[], Any], pool: GraphPool, host: HostValues | None = None) -> Path:
    """Record one warm call, segment by segment. Each is replayed at once, as its value must be read.

    With `host`, the values that the call copies from the CPU are replaced. Without it the call is recorded unchanged.
    """
    with pool.recording() as (ready, memory), warnings.catch_warnings():
        # There may be no work between two reads.
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty")
        torch.cuda.synchronize()
        recorder = _Recorder(pool.stream, ready, memory)
        host_context = contextlib.nullcontext() if host is None else host.replaying_values(recorder.run_between)
        with (
            torch.cuda.stream(ready),
            recorder,
            _intercept_bool(recorder.read_bool),
            host_context as recorder.operators,
        ):
            outputs = call()
        torch.cuda.synchronize()
    check_outputs(outputs)
    return Path(tuple(recorder.answers), recorder.pieces, recorder.read, outputs, frozenset(recorder.computing))


class _Recorder:
    """Records the segments of a path, one after the other. The stream `ready` is current on entering."""

    def __init__(self, stream: RecordingStream, ready: torch.cuda.Stream, pool: Any) -> None:
        self._stream = stream
        self._ready = ready
        self._pool = pool
        self._device = torch.cuda.current_device()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.operators: Operators | None = None
        self.answers: list[Hashable] = []
        self.pieces: list[Callable[[], None]] = []
        self.read: list[Callable[[], Hashable]] = []
        self.computing: set[int] = set()

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()
        elif self._graph is not None:
            with contextlib.suppress(RuntimeError):  # the error raised before counts
                self._end_capture()

    def _begin(self) -> None:
        # Pinned, so that a graph can write to it. A recording must not allocate such memory, so it comes before.
        self._answer = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        """End the segment, and replay it."""
        self.pieces.append(self._end_capture().replay)
        self.pieces[-1]()

    def _end_capture(self) -> torch.cuda.CUDAGraph:
        assert self._graph is not None
        graph, self._graph = self._graph, None
        try:
            with torch.cuda.stream(self._ready):  # the call may have changed the stream, and no other may end it
                graph.capture_end()
        except BaseException:  # raised again: only the allocator must be settled first
            self._stream.give_up(graph, self._pool)
            raise
        return graph

    def read_bool(self, tensor: torch.Tensor) -> bool:
        """End the segment with the read of a bool, and begin the next one."""
        same = None if self.operators is None else self.operators.constant(tensor)
        if same is not None:
            return bool(same)
        self._check_place(tensor.get_device())
        answer = self._answer
        with contextlib.nullcontext() if self.operators is None else self.operators.paused():
            tensor = tensor.detach().reshape(())
            answer.copy_(tensor if tensor.dtype is torch.bool else tensor != 0, non_blocking=True)
        self._end()
        read = _reader(answer, self._device)
        self._add_answer(read, found := read())
        self._begin()
        return found

    def run_between(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that waits for the GPU between this segment and the next one, now and on each replay."""
        for tensor in pytree.tensors((args, kwargs)):
            self._check_place(tensor.get_device() if tensor.device.type == DEVICE else self._device)
        if reads_numbers(func, args):
            raise UnsupportedError(
                f"the call cannot be captured, because of {place_of_caller()}: it reads a number from the GPU, which "
                "differs on nearly every call: keep the number on the GPU"
            )
        self._end()
        result = func(*args, **kwargs)
        self.computing.add(len(self.answers))
        self._add_answer(_computer(func, args, kwargs, result), result_key(result, DEVICE))
        self._begin()
        return result

    def _add_answer(self, read: Callable[[], Hashable], answer: Hashable) -> None:
        self.read.append(read)
        self.answers.append(answer)

    def _check_place(self, device: int) -> None:
        if torch.cuda.current_stream().cuda_stream != self._ready.cuda_stream or device != self._device:
            raise UnsupportedError("the call reads GPU data on another stream or GPU, for which a replay does not wait")


def _computer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Callable[[], Hashable]:
    """Return a function that runs an operator again, and writes its result to the same memory if the sizes match."""
    into, known = pytree.tensors(result), result_key(result, DEVICE)

    def compute() -> Hashable:
        with torch.no_grad():
            found = func(*args, **kwargs)
            if (now := result_key(found, DEVICE)) == known:
                for place, value in zip(into, pytree.tensors(found), strict=True):
                    if place.data_ptr() != value.data_ptr():  # the operator may return the memory that it writes to
                        place.copy_(value)
        return now

    return compute


def _reader(answer: torch.Tensor, device: int) -> Callable[[], bool]:
    """Return a function that waits for the GPU and reads the value that it wrote to the host's memory.

    A replay is launched on the current stream of its own GPU, even if another GPU is current.
    """
    array = answer.numpy()  # the same memory, but reading it takes a tenth of the time

    def read() -> bool:
        torch.cuda.current_stream(device).synchronize()
        return bool(array)

    return read


def _intercept_bool(read_bool: Callable[[torch.Tensor], bool], device: str = DEVICE) -> AbstractContextManager[None]:
    """Have `read_bool` answer when this thread converts a tensor on the device to a bool."""

    def as_bool(tensor: torch.Tensor) -> Any:
        return read_bool(tensor) if tensor.device.type == device and tensor.numel() == 1 else NotImplemented

    def item(tensor: torch.Tensor) -> Any:
        return as_bool(tensor) if tensor.dtype is torch.bool else NotImplemented

    return answering(as_bool, item)
