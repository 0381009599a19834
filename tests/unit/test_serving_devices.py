"""Inputs and weights on another device than the plan's: the original answers, and the calls are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchwise
from live_decisions import make_decision
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.recorded_graph import check_outputs
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import FallbackReason

PLAN = Plan(threads=torch.get_num_threads() + 1)
X, ELSEWHERE = torch.randn(3, 4), torch.ones(3, 4, device="meta")
REASON = FallbackReason.OTHER_DEVICE


def total(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
    return x.sin() if y is None else x.sin() + y.to(x.device)


@torch.no_grad()
def test_inputs_on_another_device_are_the_originals_and_counted() -> None:
    fast = torchwise.apply(total, make_decision(total, PLAN, X))
    for _ in range(2):
        assert fast(ELSEWHERE).device.type == "meta"
        assert torch.equal(fast(X), X.sin())
    assert fast.statistics.original == {REASON: 2}
    assert fast.statistics.optimized == 2


@pytest.mark.parametrize(("args", "kwargs"), [((ELSEWHERE, X), {}), ((ELSEWHERE,), {"y": X})])
@torch.no_grad()
def test_one_input_elsewhere_is_enough(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    fast = torchwise.apply(total, make_decision(total, PLAN, X, X))
    assert torch.equal(fast(X, X), X.sin() + X)
    assert fast(*args, **kwargs).device.type == "meta"
    assert fast.statistics.original == {REASON: 1}


@torch.no_grad()
def test_a_model_that_moves_is_followed_there_and_back() -> None:
    net = torch.nn.Linear(4, 4).eval()
    fast = torchwise.apply(net, make_decision(net, PLAN, X))
    weights = net.state_dict()
    fast(X)
    fast.to("meta")
    assert fast(ELSEWHERE).device.type == "meta"
    with pytest.raises(RuntimeError):  # the model's own: weights there, input here
        fast(X)
    fast.to_empty(device="cpu")
    fast.load_state_dict({name: torch.ones_like(value, device="cpu") for name, value in weights.items()})
    torch.testing.assert_close(fast(X), net(X))
    assert fast.statistics.optimized == 2
    assert fast.statistics.original[REASON] == 1


def test_a_graph_is_recorded_on_the_current_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with FakeTensorMode():
        x = torch.empty(3, device="cuda:1")
        with pytest.raises(UnsupportedError, match="an input is on cuda:1, but a graph needs it on the current"):
            GraphPool().record(torch.sin, (x,), {}, lambda: None)
        with pytest.raises(UnsupportedError, match="an output is on cuda:1"):
            check_outputs((x,))
        check_outputs((torch.empty(3, device="cuda:0"),))
