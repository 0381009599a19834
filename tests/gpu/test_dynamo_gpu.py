"""The backend for `torch.compile` on a real GPU: captured forms, and the choice by measurement."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dynamo_graphs import decision_for  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.runtime.dynamo import backend as entry  # noqa: E402
from torchwise.store import open_storage  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]
CAPTURED = [
    Plan(capture="call"),
    Plan(backend="inductor", capture="call"),
    Plan(backend="inductor", mode="reduce-overhead"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def decide_for(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    door = importlib.import_module("torchwise.runtime.dynamo.graph_backend")
    monkeypatch.setattr(door, "decide", lambda captured, asked: decision_for(captured, plan))


@pytest.mark.parametrize("plan", CAPTURED, ids=str)
def test_captured_graphs_answer_as_eager_does(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_for(plan, monkeypatch)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()

    def break_graph(x: torch.Tensor) -> torch.Tensor:
        x = model(x)
        torch._dynamo.graph_break()
        return model(x)

    compiled = torch.compile(break_graph, backend=entry)
    with torch.no_grad():
        inputs = [torch.randn(8, 64, device="cuda") for _ in range(30)]
        held = [compiled(x) for x in inputs]  # no later answer overwrites an earlier one
        for x, answer in zip(inputs, held, strict=True):
            torch.testing.assert_close(answer, break_graph(x), rtol=1e-3, atol=1e-4)
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(inputs[0]), break_graph(inputs[0]), rtol=1e-3, atol=1e-4)
        model[0].weight = torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
        torch.testing.assert_close(compiled(inputs[0]), break_graph(inputs[0]), rtol=1e-3, atol=1e-4)


def test_a_captured_plan_answers_a_training_call_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_for(Plan(capture="call"), monkeypatch)  # which has no backward pass: the graph itself answers
    model, x = torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    found = torch.autograd.grad(torch.compile(model, backend=entry)(x).sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected)


def test_a_graph_of_many_small_kernels_is_not_left_to_eager(tmp_path: Path) -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = (x @ x).tanh()
        return x

    options: dict[str, Any] = {"store": str(tmp_path / "store.db"), "calls": 10_000_000}
    compiled = torch.compile(small, backend=entry, options=options)
    with torch.no_grad():
        x = torch.randn(32, 32, device="cuda") / 8
        torch.testing.assert_close(compiled(x), small(x), rtol=1e-3, atol=1e-4)
    with open_storage(options["store"]) as storage:
        (decision,) = storage.decisions()
    assert decision.plan.capture == "call" or decision.plan.mode == "reduce-overhead"
