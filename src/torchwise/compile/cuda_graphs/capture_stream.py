"""The streams on which graphs are recorded, and the workspaces of matrix products on them.

A product that is split along its inner dimension keeps partial sums in a workspace. PyTorch keeps two workspaces for
each thread and stream, of cuBLAS and of cuBLASLt. (This is torch 2.11. By default 2.15 has none.) Each replay of a
graph writes to the workspaces of the stream that it was recorded on, so their memory must not be freed. But
`torch.compile`, for example, clears the workspaces for its own CUDA graphs. Others would then receive memory to which
replays still write.

Clearing all workspaces before a recording, so that the graph allocates its own, is no solution. It frees memory that
running products of other threads use. On an H200 with torch 2.11 that led to an illegal memory access within a hundred
recordings.

So no workspaces of others are cleared here. A plan records on a stream that no other code uses. An anchor, a tiny graph
recorded just before, has PyTorch allocate the workspaces in a memory pool of their own. That pool lives as long as the
process, and passes with its stream to another plan when this one is freed.

Two cases are not covered. A model may compute on streams of its own, whose workspaces its warm-up allocated. And
another thread may clear the workspaces between the anchor and a recording's end.

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

from torchwise._torch import dispatch
from torchwise.errors import UnsupportedError

DRIVERS = ("libcuda.so.1", "nvcuda.dll")
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: others may use the default stream while this one is recorded
_OUT_OF_MEMORY = 2


@dataclass(slots=True)
class Own:
    """A stream on which only graphs are recorded, and the anchors that keep its workspaces in place.

    Attributes:
        stream: created for this, as PyTorch hands out its own streams several times.
        pool: the memory pool of the workspaces alone.
        anchors: by pool, its first graph, which keeps it. There are several if an anchor could not be recorded.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchors: dict[Any, torch.cuda.CUDAGraph] = field(default_factory=dict)


_free: defaultdict[int, list[Own]] = defaultdict(list)
"""By device, the streams of freed plans. They are reused, as the workspaces of a stream cannot be freed."""


class RecordingStream:
    """The stream of one plan, whose graphs share workspaces: replays of one plan wait for each other.

    It is taken, on each device, when the first graph is recorded there. It is released for reuse when this object is
    freed, so the object must live as long as the graphs do.
    """

    def __init__(self) -> None:
        self._own: dict[int, Own] = {}
        self._broken: set[Any] = set()

    @contextlib.contextmanager
    def ready(self) -> Iterator[torch.cuda.Stream]:
        """Yield the stream for one recording, with workspaces for this thread and autograd's thread."""
        device = torch.cuda.current_device()
        if torch.cuda.get_allocator_backend() == "cudaMallocAsync":  # its graphs cannot share memory
            raise UnsupportedError(
                "a capture needs PyTorch's own allocator, but PYTORCH_ALLOC_CONF has backend:cudaMallocAsync: remove it"
            )
        with torch.cuda.stream(warm_up_stream(device)):
            _allocate_workspaces()  # creates missing handles, which allocates memory as no recording may
        own = self._own.get(device)
        if own is None:
            own = self._own[device] = _take(device)
            weakref.finalize(self, _free[device].append, own).atexit = False
        anchor = _anchor(own)  # each time, as the workspaces may have been cleared
        try:
            yield own.stream
        finally:  # not earlier: later versions clear a stream's workspaces with any graph that was recorded on it
            del anchor

    def usable(self, pool: Any) -> Any:
        """Return the memory pool for one recording, or a new one if a recording broke off in this pool."""
        return torch.cuda.graph_pool_handle() if pool in self._broken else pool

    def give_up(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Have PyTorch end a failed recording, and do not use its pool again."""
        if _end_anyway(graph, pool):
            self._broken.add(pool)
            with contextlib.suppress(RuntimeError):  # the first error is raised
                dispatch.RELEASE_POOL.get()(torch.cuda.current_device(), pool)


@functools.cache
def warm_up_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for all warm-ups, as each stream has its own workspaces and cached memory."""
    return torch.cuda.Stream(device)


@functools.cache
def recovery_stream(device: int) -> torch.cuda.Stream:  # noqa: ARG001
    """Return a stream of the current device that no other code uses, for recordings after a failure."""
    return _new_stream()


def _take(device: int) -> Own:
    torch.cuda.synchronize()  # a replay of the stream's former plan may still run
    if _free[device]:
        return _free[device].pop(0)  # the latest one may still have graphs that are being collected
    return Own(_new_stream(), torch.cuda.graph_pool_handle())


def _new_stream() -> torch.cuda.Stream:
    """Return a stream that PyTorch does not hand out."""
    driver = _driver()
    handle = ctypes.c_void_p()
    code = driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if code == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError("CUDA out of memory: a stream for recording graphs could not be created")
    if code:
        raise RuntimeError(f"the CUDA driver cannot create a stream for recordings: cuStreamCreate returned {code}")
    return torch.cuda.ExternalStream(handle.value or 0)


def _driver() -> Any:
    for name in DRIVERS:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise UnsupportedError(f"a capture needs a stream of the CUDA driver, but {DRIVERS[0]} was not found")


def _anchor(own: Own) -> torch.cuda.CUDAGraph:
    """Record a graph, for which PyTorch allocates the stream's workspaces in the pool.

    The recording is kept even if memory sufficed only for some of them. A released pool allocates no more, but would
    hold those workspaces.
    """
    graph = torch.cuda.CUDAGraph()
    ended = False
    try:
        with torch.cuda.stream(own.stream):
            graph.capture_begin(pool=own.pool, capture_error_mode="thread_local")
            try:
                _allocate_workspaces()
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
    """Have the allocator end a failed recording, and return whether that was needed: the pool is then unusable.

    torch 2.11 does not end it if ending the capture raises (pytorch/pytorch#180395). Memory that was used on several
    streams would never be reused. And memory of later recordings might be allocated from this pool.
    """
    try:
        graph.reset()  # as in later versions
        dispatch.END_ALLOCATING.get()(torch.cuda.current_device(), pool)
    except (AttributeError, UnsupportedError, RuntimeError):
        return False
    return True


def _allocate_workspaces() -> None:
    """Have PyTorch allocate workspaces of the current stream for the threads that may multiply matrices.

    Besides this thread, that is autograd's thread for backward passes, if this thread ever recorded a gradient. A model
    may compute gradients inside, such as of an energy, without gradients of its outputs.
    """
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        leaf = torch.zeros(1, device="cuda", requires_grad=True)
        _multiply(leaf)
        if _differentiates():
            product = leaf * 1
            product.register_hook(_multiply)
            torch.autograd.grad(product, leaf)


def _multiply(_: torch.Tensor) -> None:
    torch.cuda.current_blas_handle()  # which allocates its workspace
    with torch.no_grad():  # a product with a bias uses cuBLASLt
        square = torch.zeros(2, 2, device="cuda", dtype=torch.float32)
        torch.addmm(square[0], square, square)


def _differentiates() -> bool:
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        return False  # every backward pass then waits for the GPU, and cannot be recorded
    count = getattr(torch.autograd, "_get_sequence_nr", None)  # of this thread's nodes, which a version may lack
    return count is None or count() > 0
