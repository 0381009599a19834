"""One way through a call that asks the GPU, recorded piece by piece: a CUDA graph from each question to the next.

While it is recorded, `bool(tensor)` ends a piece, replays it, and answers by what it wrote to the host's memory; so the
model's own Python goes on by the true answer. Later the pieces are replayed, and only their answers read.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.asked import answering
from torchwise.realize.capture.frozen import count_capture
from torchwise.realize.capture.graph import check_outputs, recording_alone, recording_on, settle_generator
from torchwise.realize.capture.recording import RecordingStream
from torchwise.realize.capture.situation import DEVICE


@dataclass(frozen=True, slots=True)
class Path:
    """A call as it was answered once.

    Attributes:
        answers: to its questions, in their order.
        pieces: each replays what lies before a question; the last one what comes after all of them.
        read: each waits for the piece before it and returns its answer.
        outputs: what the call returned; the pieces overwrite its tensors.
    """

    answers: tuple[bool, ...]
    pieces: Sequence[Callable[[], None]]
    read: Sequence[Callable[[], bool]]
    outputs: Any


def record_path(call: Callable[[], Any], *, pool: Any, stream: RecordingStream) -> Path:
    """Record one call that is warm, piece by piece; each is replayed at once, as its question must be answered."""
    with recording_alone:
        try:
            with recording_on(stream) as ready, warnings.catch_warnings():
                # Nothing may be done between two questions.
                warnings.filterwarnings("ignore", message=".*CUDA Graph is empty")
                torch.cuda.synchronize()
                recorder = _Recorder(stream, ready, stream.usable(pool))
                with torch.cuda.stream(ready), recorder, _asking(recorder.ask):
                    outputs = call()
                torch.cuda.synchronize()
        except BaseException:  # raised again: only the generator must be settled first, whatever it was
            settle_generator()
            raise
    count_capture()
    check_outputs(outputs)
    return Path(tuple(recorder.answers), recorder.pieces, recorder.read, outputs)


class _Recorder:
    """Records the pieces of a path, one after the other.

    Args:
        stream: gives up what cannot be ended.
        ready: the stream that is recorded, current on entering.
        pool: the memory that all pieces share.
    """

    def __init__(self, stream: RecordingStream, ready: torch.cuda.Stream, pool: Any) -> None:
        self._stream = stream
        self._ready = ready
        self._pool = pool
        self._device = torch.cuda.current_device()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.answers: list[bool] = []
        self.pieces: list[Callable[[], None]] = []
        self.read: list[Callable[[], bool]] = []

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()
        elif self._graph is not None:
            with contextlib.suppress(RuntimeError):  # what was raised before counts
                self._ended()

    def _begin(self) -> None:
        # Pinned, so that a graph can write to it; before the recording, which may allocate no such memory.
        self._answer = torch.empty((), dtype=torch.bool, pin_memory=True)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        """End the piece, and replay it."""
        self.pieces.append(self._ended().replay)
        self.pieces[-1]()

    def _ended(self) -> torch.cuda.CUDAGraph:
        assert self._graph is not None
        graph, self._graph = self._graph, None
        try:
            with torch.cuda.stream(self._ready):  # wherever the call has gone to: no other may end it
                graph.capture_end()
        except BaseException:  # raised again: only the allocator must be settled first
            self._stream.give_up(graph, self._pool)
            raise
        return graph

    def ask(self, question: torch.Tensor) -> bool:
        """End the piece with a question, and begin the next one with its answer.

        Raises:
            UnsupportedError: it is asked on another stream or GPU than is recorded.
        """
        elsewhere = torch.cuda.current_stream().cuda_stream != self._ready.cuda_stream
        if elsewhere or question.get_device() != self._device:
            raise UnsupportedError(
                "the call asks the GPU on a stream or a GPU of its own, which a replay does not wait for"
            )
        question = question.detach().reshape(())
        answer = self._answer
        answer.copy_(question if question.dtype is torch.bool else question != 0, non_blocking=True)
        self._end()
        self.read.append(_reader(answer, self._device))
        self.answers.append(self.read[-1]())
        self._begin()
        return self.answers[-1]


def _reader(answer: torch.Tensor, device: int) -> Callable[[], bool]:
    """Return what waits for the GPU and reads an answer that it wrote to the host's memory.

    A replay is launched on the current stream of its own GPU, whichever GPU is current.
    """
    here = answer.numpy()  # the same memory, which is read in a tenth of the time

    def read() -> bool:
        torch.cuda.current_stream(device).synchronize()
        return bool(here)

    return read


def _asking(ask: Callable[[torch.Tensor], bool], device: str = DEVICE) -> AbstractContextManager[None]:
    """Have `ask` asked where this thread makes a yes or no of a tensor on the device."""

    def as_bool(tensor: torch.Tensor) -> Any:
        return ask(tensor) if tensor.device.type == device and tensor.numel() == 1 else NotImplemented

    def item(tensor: torch.Tensor) -> Any:
        return as_bool(tensor) if tensor.dtype is torch.bool else NotImplemented

    return answering(as_bool, item)
