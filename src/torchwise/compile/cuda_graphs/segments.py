"""One way through a call that asks the GPU, recorded piece by piece: a CUDA graph from each question to the next.

While it is recorded, `bool(tensor)` ends a piece, replays it, and reads the answer from the host's memory, where the
piece wrote it. So the model's own Python goes on by the true answer. Later the pieces are replayed, and only their
answers are read.

Operators whose number of elements depends on the data (`x[mask]`, `nonzero`, `unique`) ask as well: how many. Such an
operator runs between two pieces, on each replay. Its result is copied to the memory that the next piece reads. If the
result has another number of elements, that is another answer.
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
from torchwise.compile.cuda_graphs.compile_freeze import count_capture
from torchwise.compile.cuda_graphs.graph_key import DEVICE
from torchwise.compile.cuda_graphs.host_operators import reads_numbers, result_key
from torchwise.compile.cuda_graphs.host_values import HostValues, Operators
from torchwise.compile.cuda_graphs.recorded_graph import check_outputs, recording_alone, recording_on, settle_generator
from torchwise.compile.tensor_reads import answering
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree


@dataclass(frozen=True, slots=True)
class Path:
    """A call as it was answered once.

    Attributes:
        answers: to its questions, in their order.
        pieces: each replays the work before a question, and the last one the work after all of them.
        read: each waits for the piece before it and returns its answer.
        outputs: the call's outputs. The pieces overwrite their tensors.
        computing: places of the questions whose answers are read by computing the inputs of the next piece.
    """

    answers: tuple[Hashable, ...]
    pieces: Sequence[Callable[[], None]]
    read: Sequence[Callable[[], Hashable]]
    outputs: Any
    computing: frozenset[int] = frozenset()


def record_path(call: Callable[[], Any], *, pool: Any, stream: RecordingStream, host: HostValues | None = None) -> Path:
    """Record one call that is warm, piece by piece. Each is replayed at once, as its question must be answered.

    Args:
        call: the callable to record.
        pool: the memory pool that the graphs of one plan share.
        stream: the plan's own.
        host: the values that the call copies from the CPU, or None to record it as it is.
    """
    with recording_alone:
        try:
            with recording_on(stream) as ready, warnings.catch_warnings():
                # There may be no work between two questions.
                warnings.filterwarnings("ignore", message=".*CUDA Graph is empty")
                torch.cuda.synchronize()
                recorder = _Recorder(stream, ready, stream.usable(pool))
                seeing = contextlib.nullcontext() if host is None else host.answering(recorder.run_between)
                with torch.cuda.stream(ready), recorder, _intercept_bool(recorder.ask), seeing as recorder.operators:
                    outputs = call()
                torch.cuda.synchronize()
        except BaseException:  # raised again after any error: only the generator must be settled first
            settle_generator()
            raise
    count_capture()
    check_outputs(outputs)
    return Path(tuple(recorder.answers), recorder.pieces, recorder.read, outputs, frozenset(recorder.computing))


class _Recorder:
    """Records the pieces of a path, one after the other.

    Args:
        stream: gives up a recording that cannot be ended.
        ready: the stream that is recorded, current on entering.
        pool: the memory that all pieces share.
    """

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
        # Pinned, so that a graph can write to it. It is made before the recording, which may allocate no such memory.
        self._answer = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        """End the piece, and replay it."""
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

    def ask(self, question: torch.Tensor) -> bool:
        """End the piece with a question, and begin the next one with its answer.

        Raises:
            UnsupportedError: it is asked on another stream or GPU than the recorded one.
        """
        same = None if self.operators is None else self.operators.constant(question)
        if same is not None:
            return bool(same)
        self._check_place(question.get_device())
        answer = self._answer
        with contextlib.nullcontext() if self.operators is None else self.operators.paused():
            question = question.detach().reshape(())
            answer.copy_(question if question.dtype is torch.bool else question != 0, non_blocking=True)
        self._end()
        read = _reader(answer, self._device)
        self._add_answer(read, found := read())
        self._begin()
        return found

    def run_between(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that waits for the GPU between this piece and the next one, here and on each replay.

        Raises:
            UnsupportedError: it is on another stream or GPU than the recorded one, or reads numbers.
        """
        for tensor in pytree.tensors((args, kwargs)):
            self._check_place(tensor.get_device() if tensor.device.type == DEVICE else self._device)
        if reads_numbers(func, args):
            raise UnsupportedError(
                f"the call cannot be captured, because of {place_of_caller()}: it waits for the GPU to read a number, "
                "which is another one on nearly every call: keep it there"
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
            raise UnsupportedError(
                "the call asks the GPU on a stream or a GPU of its own, which a replay does not wait for"
            )


def _computer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Callable[[], Hashable]:
    """Return a function that runs an operator again, and leaves its result in the same memory if the sizes match."""
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
    """Return a function that waits for the GPU and reads an answer that it wrote to the host's memory.

    A replay is launched on the current stream of its own GPU, even if another GPU is current.
    """
    here = answer.numpy()  # the same memory, which is read in a tenth of the time

    def read() -> bool:
        torch.cuda.current_stream(device).synchronize()
        return bool(here)

    return read


def _intercept_bool(ask: Callable[[torch.Tensor], bool], device: str = DEVICE) -> AbstractContextManager[None]:
    """Have `ask` answer when this thread turns a tensor on the device into a yes or no."""

    def as_bool(tensor: torch.Tensor) -> Any:
        return ask(tensor) if tensor.device.type == device and tensor.numel() == 1 else NotImplemented

    def item(tensor: torch.Tensor) -> Any:
        return as_bool(tensor) if tensor.dtype is torch.bool else NotImplemented

    return answering(as_bool, item)
