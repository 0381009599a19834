"""Stands in for CUDA graphs where there is no GPU: a replay computes the recorded work once more."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.compile.cuda_graphs.call_graph import CapturedCall
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.recorded_graph import Graph
from torchwise.compile.signature import opaque_leaves
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: object) -> None: ...


class Machine:
    """Stands in for CUDA: a replay computes the recorded work once more, and everything is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded, self.in_place, self.replayed, self.copied_nothing = 0, 0, 0, 0
        self.capturing, self.refuses = False, False
        self.stream, self.device = 0, 0
        self._pools: dict[int, list[Callable[[], object]]] = {}
        self._in_place: list[Callable[[], object]] = []
        pool = itertools.count().__next__
        for name, value in {"graph_pool_handle": pool, "Stream": Stream, "current_stream": Stream}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: self.stream, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: self.capturing, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: self.device, raising=False)
        monkeypatch.setattr(GraphPool, "record", lambda *given: self.record(*given))
        monkeypatch.setattr(GraphPool, "record_in_place", lambda _, *given: self.record_in_place(*given))
        monkeypatch.setattr(torch, "empty_like", self.empty_like)
        self._memory: list[tuple[torch.Tensor, Callable[[], object]]] = []

    def record(
        self, pool: GraphPool, call: Callable[..., Any], args: Any, kwargs: Any, settled: Callable[[], None]
    ) -> Graph:
        if self.refuses:
            raise UnsupportedError("this cannot be recorded")
        self.recorded += 1
        args, kwargs = pytree.map_tensors(torch.Tensor.clone, (args, dict(kwargs)))
        inputs = pytree.tensors((args, kwargs))
        call(*args, **kwargs)
        settled()
        before = [t._version for t in inputs]
        outputs = call(*args, **kwargs)
        if opaque := opaque_leaves(outputs):
            raise UnsupportedError(f"an output holds {opaque[0]}")
        written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if t._version != v]
        inside = self._pools.setdefault(pool.handle, [])
        assert not inside or any(graph() for graph in inside), "a pool whose graphs are gone takes no more"

        def replay() -> None:
            self.replayed += 1
            # A graph gives the outputs of its recording, whatever the call would give now.
            for kept, now in zip(pytree.tensors(outputs), pytree.tensors(call(*args, **kwargs)), strict=False):
                kept.copy_(now)

        inside.append(weakref.ref(replay))
        return Graph(replay, inputs, outputs, written)

    def empty_like(self, like: torch.Tensor) -> torch.Tensor:
        """Hand out again the memory that nobody holds any more, as PyTorch's allocator on the GPU does."""
        free = [i for i, (kept, held) in enumerate(self._memory) if held() is None and kept.shape == like.shape]
        kept = self._memory.pop(free[-1])[0] if free else torch.empty(like.shape, dtype=like.dtype)
        given = kept.detach()
        self._memory.append((kept, weakref.ref(given)))
        return given

    def record_in_place(
        self, call: Callable[..., Any], args: Any, kwargs: Any, wanted: list[torch.Tensor] | None
    ) -> tuple[Callable[[], None], Any]:
        if self.refuses:
            raise RuntimeError("this cannot be recorded")
        self.in_place += 1
        args, kwargs = pytree.map_tensors(view_memory, (args, dict(kwargs)))
        given = pytree.tensors((args, kwargs))
        before = [*map(torch.clone, given)]
        borrowed = call(*args, **kwargs) if wanted is None else None
        for tensor, value in zip(given, before, strict=True):  # recording computes nothing
            tensor.copy_(value)
        targets = [view_memory(target) for target in wanted] if wanted is not None else pytree.tensors(borrowed)

        def replay() -> None:
            self.replayed += 1
            self.copied_nothing += 1
            for target, now in zip(targets, pytree.tensors(call(*args, **kwargs)), strict=True):
                target.copy_(now)

        self._in_place.append(weakref.ref(replay))
        return replay, borrowed

    def count_graphs(self) -> int:
        """Count the graphs that somebody still holds."""
        graphs = [*self._in_place, *(graph for pool in self._pools.values() for graph in pool)]
        return sum(graph() is not None for graph in graphs)


def view_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Read and write the memory without keeping it, as a graph does."""
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def capture_call(call: Callable[..., Any], module: torch.nn.Module | None = None, **options: Any) -> CapturedCall:
    return CapturedCall(call, module, device="cuda", mode="inference", **options)
