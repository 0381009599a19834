"""The streams that graphs are recorded on, and the workspaces that their matrix products find there.

PyTorch keeps one workspace of cuBLAS for each thread and stream (32 MiB on an H100), and a graph that was recorded on a
stream writes to that stream's workspace at each replay. Wherever it lies, it must stay: whoever clears the workspaces,
as `torch.compile` does for its own CUDA graphs, would else give memory to others while replays still write to it.

Clearing them all before a recording, so that the graph takes one from its own pool, takes memory from products that
are under way in other threads: an illegal memory access, on an H200 with torch 2.11, within a hundred recordings.
So nothing of others' is cleared here. A plan records on a stream that nobody else uses, and finds the workspace there
that an anchor, a tiny graph recorded just before, has put into a memory pool where nothing else ever lies. That pool
stays for as long as the process, and goes with its stream to another plan when this one dies.

Sources: PyTorch's `CublasHandlePool.cpp`; pytorch/pytorch#175276 and #193402 (later versions clear the workspaces of a
stream when a graph that was recorded on it is freed, which the anchor's pool outlives, too).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: others may use the default stream while this one is recorded


@dataclass(frozen=True, slots=True)
class Anchored:
    """A stream that nothing but graphs is recorded on, and what keeps its workspaces where they are.

    Attributes:
        stream: made for this; PyTorch hands its own streams out again and again, to whoever asks.
        pool: where the workspaces lie, and nothing else.
        anchor: the graph that keeps the pool.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchor: torch.cuda.CUDAGraph


_free: defaultdict[int, list[Anchored]] = defaultdict(list)
"""By device, those of plans that died: a stream cannot be rid of its workspaces, which would be lost with it."""


class RecordingStream:
    """The stream of one plan, whose graphs share a workspace: replays of one plan wait for each other.

    It is taken when the first graph is recorded, and handed on when this object dies, so that it must live as long as
    the graphs do.
    """

    def __init__(self) -> None:
        self._taken: Anchored | None = None

    @contextlib.contextmanager
    def ready(self) -> Iterator[torch.cuda.Stream]:
        """Give the stream for one recording, with workspaces in place for this thread and autograd's."""
        device = torch.cuda.current_device()
        with torch.cuda.stream(warm_up_stream(device)):
            _look_up_handles()  # makes those that are missing, which takes memory as no recording may
        if self._taken is None:
            self._taken = _take(device)
            weakref.finalize(self, _free[device].append, self._taken)
        anchor = _anchor(self._taken.stream, self._taken.pool)  # anew: somebody may have cleared the workspaces
        yield self._taken.stream
        del anchor  # not before: later versions clear a stream's workspaces with any graph that was recorded on it


@functools.cache
def warm_up_stream(device: int) -> torch.cuda.Stream:
    """Return one stream for all that warms up: each has workspaces, and memory that it gives back to itself alone."""
    return torch.cuda.Stream(device)


def _take(device: int) -> Anchored:
    torch.cuda.synchronize()  # a replay of the plan that had it may be under way
    if _free[device]:
        return _free[device].pop()
    stream, pool = _new_stream(), torch.cuda.graph_pool_handle()
    return Anchored(stream, pool, _anchor(stream, pool))


def _new_stream() -> torch.cuda.Stream:
    """Return a stream that PyTorch gives to nobody else."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # ROCm
        return torch.cuda.Stream()
    handle = ctypes.c_void_p()
    if code := driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING):
        raise RuntimeError(f"the CUDA driver makes no stream to record a graph on: cuStreamCreate returned {code}")
    return torch.cuda.ExternalStream(handle.value or 0)


def _anchor(stream: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    """Record a graph for whose recording PyTorch puts the stream's workspaces into the pool."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            _look_up_handles()
        finally:
            graph.capture_end()
    return graph


def _look_up_handles() -> None:
    """Have PyTorch give the threads that may multiply matrices a workspace for the current stream, with the handle.

    Besides this thread it is that in which autograd runs backward passes, where gradients are wanted.
    """
    leaf = torch.zeros(1, device="cuda", requires_grad=torch.is_grad_enabled())  # some work: no graph is empty
    torch.cuda.current_blas_handle()
    if leaf.requires_grad:
        product = leaf * 1
        product.register_hook(_look_up_handle)
        torch.autograd.grad(product, leaf)


def _look_up_handle(_: torch.Tensor) -> None:
    torch.cuda.current_blas_handle()
