"""Recorded calls on a GPU: their time is that of the kernels, not of the launch."""

from __future__ import annotations

import pytest
import torch

from torchwise.runtime.program.recorder import CallRecorder

pytestmark = pytest.mark.gpu


class Products(torch.nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2048, 2048, device="cuda") / 64)
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x @ self.weight
        return x


def test_calls_take_the_time_of_their_kernels() -> None:
    short, long, x = Products(5), Products(50), torch.randn(2048, 2048, device="cuda")
    with CallRecorder() as recorder, torch.no_grad():
        for _ in range(20):
            short(x)
            long(x)
    first, second = recorder.ranked()
    assert (first.live, second.live) == (long, short)
    assert 5 < first.seconds / second.seconds < 20
    assert all(len(kind.events) == 20 for one in (first, second) for kind in one.kinds.values())


def test_a_call_within_a_graph_capture_is_recorded_without_events() -> None:
    module, x = Products(2), torch.randn(2048, 2048, device="cuda")
    with torch.no_grad():
        module(x)
        graph = torch.cuda.CUDAGraph()
        with CallRecorder() as recorder, torch.cuda.graph(graph):
            out = module(x)
    graph.replay()
    assert torch.allclose(out, module(x))
    (found,) = recorder.calls
    assert found.calls == 1
    assert not found.kinds
