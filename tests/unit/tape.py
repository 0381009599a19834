"""CUDA graphs without CUDA: operators are taped with the memory they used, and run on that memory again.

Recording computes nothing that lasts and draws no random numbers, as with a real graph. The results of a replay lie
in the places of the recording's results, and Python does not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchwise.compile.cuda_graphs import capture_errors, recorded_graph
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.recorded_graph import Graph
from torchwise.runtime import call_guard
from torchwise.workload import pytree


class Stream:
    cuda_stream = 0

    def wait_stream(self, other: object) -> None: ...


class Tape(TorchDispatchMode):
    """Keeps the operators that run within, and the tensors they overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        arguments = func._schema.arguments
        written = [a for a, info in zip(args, arguments, strict=False) if info.alias_info and info.alias_info.is_write]
        written += [kwargs[i.name] for i in arguments if i.name in kwargs and i.alias_info and i.alias_info.is_write]
        if "batch_norm" in str(func):  # whose schema keeps quiet about the running statistics
            written += args[3:5]
        for tensor in (t for t in tree_leaves(written) if isinstance(t, torch.Tensor)):
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self._kept.setdefault(whole.data_ptr(), (whole, whole.clone()))
        result = func(*args, **kwargs)
        views = any(r.alias_info is not None for r in func._schema.returns)
        self._entries.append((func, args, kwargs, [] if views else tree_leaves(result)))
        return result

    def put_back(self) -> None:
        for whole, before in self._kept.values():
            whole.copy_(before)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, results in self._entries:
                new = func(*args, **kwargs)
                for kept, value in zip(results, tree_leaves(new), strict=False):
                    if isinstance(kept, torch.Tensor):
                        kept.copy_(value)


class Machine:
    """Takes the CPU for the GPU, and counts recordings and replays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded, self.replayed, self.mode, self.capturing = 0, 0, 0, False
        self.pools: list[int] = []
        monkeypatch.setattr(recorded_graph, "DEVICE", "cpu")
        monkeypatch.setattr(
            call_guard, "_count_dispatch_modes", lambda: 0
        )  # no real recording is a mode, as the tape is
        monkeypatch.setattr(capture_errors, "_MACHINERY", (*capture_errors._MACHINERY, __file__))
        fakes = {
            "graph_pool_handle": itertools.count().__next__,
            "Stream": Stream,
            "current_device": lambda: 0,
            "current_stream": Stream,
            "is_current_stream_capturing": lambda: self.capturing,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": self._set_mode,
        }
        for name, value in fakes.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(GraphPool, "record", lambda *given: self.record(*given))
        monkeypatch.setattr(GraphPool, "record_in_place", lambda *given: self.record_in_place(*given))
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)

    def _set_mode(self, mode: Any) -> None:
        self.mode = mode

    def record(
        self, pool: GraphPool, call: Callable[..., Any], args: Any, kwargs: Any, settled: Callable[[], None]
    ) -> Graph:
        args, kwargs = pytree.map_tensors(lambda t: t.detach().clone(), (args, dict(kwargs)))
        inputs = pytree.tensors((args, kwargs))
        saved, numbers = [t.clone() for t in inputs], torch.get_rng_state()
        for _ in range(3):
            call(*args, **kwargs)
            for tensor, value in zip(inputs, saved, strict=True):
                tensor.copy_(value)
        torch.set_rng_state(numbers)
        settled()
        before = [t._version for t in inputs]
        replay, outputs = self.record_in_place(pool, call, args, kwargs, None)
        written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if t._version != v]
        return Graph(replay, inputs, outputs, written)

    def record_in_place(
        self, pool: GraphPool, call: Callable[..., Any], args: Any, kwargs: Any, _: object
    ) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        self.pools.append(pool.handle)
        tape, numbers = Tape(), torch.get_rng_state()
        try:
            with tape:
                outputs = call(*args, **kwargs)
        finally:
            with torch.no_grad():
                tape.put_back()
            torch.set_rng_state(numbers)

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay, outputs
