"""The owner of CUDA graphs: it records them, and keeps the memory, the stream and the order of replays that they share.

Owners are captured calls, steps and loops. The graphs of one write to one memory pool, so that they must not run side
by side.

Sources: PyTorch's `torch.cuda.graph` documentation (warm-up on a side stream, private pools, registered generators).
vLLM's and PyTorch's own CUDA-graph wrappers for the one-pool-for-all-shapes idiom.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch

from torchwise._torch import dispatch
from torchwise._torch.dispatch import copy_each
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream, recovery_stream, warm_up_stream
from torchwise.compile.cuda_graphs.compile_freeze import count_capture
from torchwise.compile.cuda_graphs.recorded_graph import Graph, check_outputs, static_inputs
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

WARM_UP_CALLS = 3
"""Calls before capture, for lazy initialization, cuDNN's algorithm choice and Inductor's compilation."""

_recording_alone = threading.RLock()
"""Held while recording: two recordings would share the default generator's state and the garbage collector's switch."""


class GraphPool:
    """Records the graphs of one owner, and orders their replays.

    Attributes:
        handle: the memory pool of the graphs recorded next.
        stream: the stream on which they are recorded.
        get_raw_stream: returns the address of the current stream of a GPU.
        last_raw: the address of the stream of the last replay, alone in a list, or None before the first one.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.stream = RecordingStream()
        self._last: torch.cuda.Stream | None = None
        self._last_device: int | None = None
        self.last_raw: list[int | None] = [None]
        try:
            self.get_raw_stream: Callable[[int], int] = dispatch.RAW_STREAM.get()
        except UnsupportedError:  # as with a build for the CPU
            self.get_raw_stream = lambda device: torch.cuda.current_stream(device).cuda_stream

    def follow_current_stream(self) -> None:
        """Let the first replay wait for work that is queued on the current stream, such as casts of weights."""
        self._last, self.last_raw[0] = torch.cuda.current_stream(), None

    def wait_for_last_replay(self, device: int) -> None:
        """Wait for the last replay if it was on another stream, as it may still use the memory of the graphs."""
        raw = self.get_raw_stream(device)
        if raw == self.last_raw[0] and device == self._last_device:  # default streams of all GPUs have one address
            return
        current = torch.cuda.current_stream()
        if self._last is not None:
            current.wait_stream(self._last)
        self._last, self._last_device, self.last_raw[0] = current, device, raw

    def renew(self, graphs: Sized = ()) -> None:
        """Take new memory unless there are graphs, as a pool without them takes no new ones while tensors lie in it."""
        if not graphs:
            self.handle = torch.cuda.graph_pool_handle()

    def record(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], settled: Callable[[], None]
    ) -> Graph:
        """Warm up, call `settled`, and record one call on copies of its inputs."""
        args, kwargs, inputs = static_inputs(args, kwargs)
        warm_up(call, args, kwargs, inputs)
        settled()
        before = [t._version for t in inputs]
        replay, outputs = self._record_graph(lambda: call(*args, **kwargs))
        check_outputs(outputs)
        written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if t._version != v]
        return Graph(replay, inputs, outputs, written)

    def record_in_place(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        wanted: list[torch.Tensor] | None,
    ) -> tuple[Callable[[], None], Any]:
        """Record one warm call on the memory of its arguments. Recording computes nothing, so it writes nothing either.

        The outputs are copied to `wanted`, tensors in the order of `pytree.tensors`. Without it they are left in place,
        and returned with the replay. The graph overwrites them.
        """
        args, kwargs = pytree.map_tensors(_alias, (args, dict(kwargs)))
        targets = None if wanted is None else [_alias(target) for target in wanted]

        def call_into_targets() -> Any:
            outputs = call(*args, **kwargs)
            if targets is None:
                return outputs
            copy_each(targets, pytree.tensors(outputs))
            return None

        replay, own = self._record_graph(call_into_targets)
        check_outputs(own)
        return replay, own

    @contextlib.contextmanager
    def recording(self) -> Iterator[tuple[torch.cuda.Stream, Any]]:
        """Yield the stream and the memory for one recording, and prevent anything that may disturb it.

        Other threads may use the GPU meanwhile, such as a thread that pins memory for a data loader.
        """
        with _recording_alone:
            try:
                with (
                    # Set again at the end: a capture that fails to end leaves its own stream.
                    torch.cuda.stream(torch.cuda.current_stream()),
                    _own_casts(),
                    _no_collection(),
                    self.stream.ready() as ready,
                ):
                    yield ready, self.stream.usable(self.handle)
            except BaseException:  # raised again after any error: the generator must be restored first
                settle_generator()
                raise
            count_capture()

    def _record_graph(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Return the replay of `call`, and its outputs during the recording."""
        graph = torch.cuda.CUDAGraph()
        with self.recording() as (ready, pool):
            try:
                with torch.cuda.graph(graph, pool=pool, stream=ready, capture_error_mode="thread_local"):
                    outputs = call()
            except BaseException:  # raised again after any error: the allocator must be restored first
                self.stream.give_up(graph, pool)
                raise
        return super(torch.cuda.CUDAGraph, graph).replay, outputs  # a call of Python less, of which nothing is needed


def warm_up(call: Callable[..., Any], args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> None:
    """Call a few times on a side stream, and restore inputs and random numbers.

    The current stream waits even if the call raises, as code that restores the state must not race with its kernels.
    """
    stream = warm_up_stream(torch.cuda.current_device())
    saved = [t.clone() for t in inputs]
    generator = torch.cuda.get_rng_state()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                call(*args, **kwargs)
                for tensor, original in zip(inputs, saved, strict=True):
                    tensor.copy_(original)
    finally:
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(generator)


def settle_generator() -> None:
    """End the generator's capture, which a failed capture leaves open, as every later draw would raise.

    It uses a stream that no other code uses. Later versions clear a stream's workspaces with any graph of it, and the
    default stream of `torch.cuda.graph` may have recorded graphs of the user.
    """
    with (
        contextlib.suppress(RuntimeError, UnsupportedError),
        torch.cuda.stream(torch.cuda.current_stream()),
        _no_collection(),
        torch.cuda.graph(
            torch.cuda.CUDAGraph(),
            stream=recovery_stream(torch.cuda.current_device()),
            capture_error_mode="thread_local",
        ),
    ):
        torch.zeros(1, device="cuda")


def collect_garbage() -> None:
    """Free objects in reference cycles, such as CUDA graphs, while nothing is recorded, as freeing a graph then fails.

    It collects twice: compiled code is in cycles, and its frozen weights are in further cycles.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    with _recording_alone:
        for _ in range(2):
            gc.collect()


@contextlib.contextmanager
def _own_casts() -> Iterator[None]:
    """Have autocast cast weights inside the graph, as earlier casts are freed when its context ends."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, as freeing a CUDA graph during a recording would fail."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor on the same memory, as in the warm-up: neither a parameter nor of inference mode."""
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
