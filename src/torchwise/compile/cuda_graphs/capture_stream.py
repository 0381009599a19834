"""The streams that graphs are recorded on, and the workspaces that their matrix products find there.

A product that is split along its inner dimension keeps partial sums in a workspace. PyTorch keeps two of them for each
thread and stream, of cuBLAS and of cuBLASLt. (This is torch 2.11. By default 2.15 has none.) A graph writes, at each
replay, to the workspaces of the stream that it was recorded on. They must stay in their memory. `torch.compile`, for
one, clears the workspaces for its own CUDA graphs. That would give memory to others while replays still write to it.

Clearing them all before a recording, so that the graph takes some from its own pool, is no way out. It takes memory
from products that are under way in other threads. On an H200 with torch 2.11 that led to an illegal memory access
within a hundred recordings.

So no workspaces of others are cleared here. A plan records on a stream that nobody else uses. An anchor, a tiny graph
recorded just before, has had the workspaces put into a memory pool that holds nothing else. That pool stays for as long
as the process, and goes with its stream to another plan when this one dies.

Two cases are not covered. A model may compute on streams of its own, whose workspaces lie where its warm-up put them.
And another thread may clear the workspaces in the very moment between the anchor and a recording's end.

Sources: PyTorch's `CublasHandlePool.cpp` and `CUDABlas.cpp`, and pytorch/pytorch#175276 and #193402. Later versions
clear the workspaces of a stream when a graph recorded on it is freed. The anchor's pool outlives that, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import UnsupportedError

DRIVERS = ("libcuda.so.1", "nvcuda.dll")
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: others may use the default stream while this one is recorded
_OUT_OF_MEMORY = 2


@dataclass(slots=True)
class Own:
    """A stream on which only graphs are recorded, and the anchors that keep its workspaces in place.

    Attributes:
        stream: made for this, as PyTorch hands its own streams out again and again, to anyone.
        pool: the memory pool of the workspaces, which holds nothing else.
        anchors: by pool, its first graph, which keeps it. There are several if an anchor could not be recorded.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchors: dict[Any, torch.cuda.CUDAGraph] = field(default_factory=dict)


_free: defaultdict[int, list[Own]] = defaultdict(list)
"""By device, the streams of plans that died: a stream cannot be rid of its workspaces, which would be lost with it."""


class RecordingStream:
    """The stream of one plan, whose graphs share workspaces: replays of one plan wait for each other.

    It is taken, on each device, when the first graph is recorded there. It is handed on when this object dies, so that
    the object must live as long as the graphs do.
    """

    def __init__(self) -> None:
        self._own: dict[int, Own] = {}
        self._broken: set[Any] = set()

    @contextlib.contextmanager
    def ready(self) -> Iterator[torch.cuda.Stream]:
        """Give the stream for one recording, with workspaces in place for this thread and autograd's."""
        device = torch.cuda.current_device()
        if torch.cuda.get_allocator_backend() == "cudaMallocAsync":  # its memory for a graph is in no other graph
            raise UnsupportedError(
                "a capture needs PyTorch's own allocator, but PYTORCH_ALLOC_CONF has backend:cudaMallocAsync"
            )
        with torch.cuda.stream(warm_up_stream(device)):
            _ask_for_workspaces()  # makes missing handles, which takes memory as no recording may
        own = self._own.get(device)
        if own is None:
            own = self._own[device] = _take(device)
            weakref.finalize(self, _free[device].append, own).atexit = False
        anchor = _anchor(own)  # anew: somebody may have cleared the workspaces
        try:
            yield own.stream
        finally:  # not before: later versions clear a stream's workspaces with any graph that was recorded on it
            del anchor

    def usable(self, pool: Any) -> Any:
        """Return the memory pool for one recording, or a new one if a recording broke off in this pool."""
        return torch.cuda.graph_pool_handle() if pool in self._broken else pool

    def give_up(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Have PyTorch end a recording that failed, and forget it."""
        if _end_anyway(graph, pool):
            self._broken.add(pool)
            with contextlib.suppress(RuntimeError):  # the error that was raised counts
                torch._C._cuda_releasePool(torch.cuda.current_device(), pool)


@functools.cache
def warm_up_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for all warm-ups: each stream has workspaces, and memory that is reused on it alone."""
    return torch.cuda.Stream(device)


@functools.cache
def recovery_stream(device: int) -> torch.cuda.Stream:  # noqa: ARG001
    """Return a stream of the current device that is nobody else's, for recordings after a failure."""
    return _new_stream()


def _take(device: int) -> Own:
    torch.cuda.synchronize()  # a replay of the plan that had the stream may be under way
    if _free[device]:
        return _free[device].pop(0)  # the latest one may still have graphs, which are collected just now
    return Own(_new_stream(), torch.cuda.graph_pool_handle())


def _new_stream() -> torch.cuda.Stream:
    """Return a stream that PyTorch gives to nobody else."""
    driver = _driver()
    handle = ctypes.c_void_p()
    code = driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError("CUDA out of memory: no stream could be made to record a graph on")
    if code:
        raise RuntimeError(f"the CUDA driver makes no stream to record a graph on: cuStreamCreate returned {code}")
    return torch.cuda.ExternalStream(handle.value or 0)


def _driver() -> Any:
    for name in DRIVERS:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise UnsupportedError(f"a capture needs a stream of its own from the CUDA driver, but no {DRIVERS[0]} is found")


def _anchor(own: Own) -> torch.cuda.CUDAGraph:
    """Record a graph for whose recording PyTorch puts the stream's workspaces into the pool.

    The recording is kept even if there was no memory for all of them. A pool that was let go takes no more, but would
    have some of the workspaces.
    """
    graph = torch.cuda.CUDAGraph()
    ended = False
    try:
        with torch.cuda.stream(own.stream):
            graph.capture_begin(pool=own.pool, capture_error_mode="thread_local")
            try:
                _ask_for_workspaces()
            finally:
                graph.capture_end()
                ended = True
    finally:
        if ended:
            own.anchors.setdefault(own.pool, graph)
        else:
            _end_anyway(graph, own.pool)
            own.pool = torch.cuda.graph_pool_handle()
    return graph


def _end_anyway(graph: torch.cuda.CUDAGraph, pool: Any) -> bool:
    """Have the allocator end a failed recording, and return whether it had to: the pool then takes no more.

    torch 2.11 does not if ending the capture raises (pytorch/pytorch#180395). Memory that was used on several streams
    would never be given out again. And memory of later recordings might be taken from this pool.
    """
    try:
        graph.reset()  # the way of later versions
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    except (AttributeError, RuntimeError):
        return False
    return True


def _ask_for_workspaces() -> None:
    """Have PyTorch give the threads that may multiply matrices workspaces for the current stream.

    Besides this thread, that is autograd's thread for backward passes, if this thread ever had anything to
    differentiate. A model may ask for gradients by itself, as of an energy, when none are wanted of its answers.
    """
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        leaf = torch.zeros(1, device="cuda", requires_grad=True)
        _multiply(leaf)
        if _differentiates():
            product = leaf * 1
            product.register_hook(_multiply)
            torch.autograd.grad(product, leaf)


def _multiply(_: torch.Tensor) -> None:
    torch.cuda.current_blas_handle()  # which has a workspace from here on
    with torch.no_grad():  # with a bias, this goes by cuBLASLt
        square = torch.zeros(2, 2, device="cuda", dtype=torch.float32)
        torch.addmm(square[0], square, square)


def _differentiates() -> bool:
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        return False  # every backward pass waits for the GPU then, so that none is recorded
    count = getattr(torch.autograd, "_get_sequence_nr", None)  # of this thread's nodes, which a version may lack
    return count is None or count() > 0
