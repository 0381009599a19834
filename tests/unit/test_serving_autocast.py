"""`backend="torchwise"` under autocast: the graph is decided for the autocast in force, and answers as under it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from dynamo_graphs import capture_graph, decision_for
from torchwise.alerts import OnceLog
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision
from torchwise.runtime.dynamo import backend, decide
from torchwise.runtime.dynamo.decide import Options
from torchwise.runtime.dynamo.graph import Captured, CastGraph, Graph
from torchwise.store import open_storage
from torchwise.workload.identity import structure

THREADS, INDUCTOR = Plan(threads=torch.get_num_threads() + 1), Plan(backend="inductor")
X = torch.randn(4, 8)


def bf16(device: str = "cpu", **options: Any) -> Any:
    return torch.autocast(device, torch.bfloat16, **options)


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


@pytest.fixture(params=[EAGER, THREADS, INDUCTOR], ids=str)
def decided(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, plainly_compiled: None
) -> Iterator[list[Captured]]:
    """Decide for a plan, and keep the captured calls."""
    found: list[Captured] = []

    def decide_plan(captured: Captured, _asked: Options) -> Decision:
        found.append(captured)
        return decision_for(captured, request.param)

    door = importlib.import_module("torchwise.runtime.dynamo.graph_backend")
    monkeypatch.setattr(door, "decide", decide_plan)
    monkeypatch.setattr(door, "_logged", OnceLog())
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype is theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_each_autocast_has_a_decision_of_its_own(net: torch.nn.Module, decided: list[Captured], caplog: Any) -> None:
    fast = torch.compile(net, backend=backend)
    around = [torch.no_grad(), bf16(), torch.autocast("cpu", torch.float16), bf16(), bf16(enabled=False)]
    with caplog.at_level(logging.WARNING, "torchwise"), torch.no_grad():
        for context in around:
            with context:
                same(fast(X), net(X))
    kinds = [(type(c.graph), getattr(c.graph, "autocast", None)) for c in decided]
    assert kinds == [(Graph, None), (CastGraph, ("cpu", "bfloat16")), (CastGraph, ("cpu", "float16"))]
    assert len({structure(captured.graph) for captured in decided}) == 3
    said = [record.getMessage() for record in caplog.records if record.name.startswith("torchwise")]
    assert said == [], "the plan itself answers, and nothing is left to Inductor"


def test_training_under_autocast_has_eagers_gradients(net: torch.nn.Module, decided: list[Captured]) -> None:
    def gradients(model: Any) -> list[torch.Tensor]:
        net.zero_grad()
        with bf16():
            loss = model(X).float().pow(2).sum()
        loss.backward()
        return [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]

    for ours, theirs in zip(gradients(torch.compile(net, backend=backend)), gradients(net), strict=True):
        assert ours.dtype is torch.float32
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)
    assert [c.mode for c in decided] == ["training"]


def test_a_graph_under_autocast_answers_alike_wherever_it_travels(net: torch.nn.Module) -> None:
    with bf16(), torch.no_grad():
        captured = capture_graph(net, X)
        expected = net(X)
    travelled = cloudpickle.loads(cloudpickle.dumps(captured.graph))
    assert structure(travelled) == structure(captured.graph)
    with torch.no_grad():
        assert torch.equal(travelled(*captured.example.args)[0], expected)
        doubled = [v.double() if isinstance(v, torch.Tensor) else v for v in captured.example.args]
        assert travelled(*doubled)[0].dtype is torch.float64, "the reference is not rounded"


def test_an_autocast_for_another_device_is_none(net: torch.nn.Module) -> None:
    with bf16("cuda", enabled=torch.cuda.is_available()), torch.no_grad():
        assert type(capture_graph(net, X).graph) is Graph


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
@pytest.mark.nightly
def test_it_is_tuned_in_workers_under_its_autocast_and_found_again(
    net: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    tune = decide.run_study
    searched: list[Any] = []

    def searches(request: Any, *args: Any) -> Any:
        searched.append(tune(replace(request, plans=(THREADS, INDUCTOR)), *args))
        return searched[-1]

    monkeypatch.setattr(decide, "run_study", searches)
    monkeypatch.setattr(decide, "SPENT", decide.Spent())
    options = {"store": str(tmp_path / "store.db"), "progress": False}
    with torch.no_grad(), bf16(), caplog.at_level(logging.WARNING, "torchwise"):
        for _ in range(2):
            torch._dynamo.reset()
            same(torch.compile(net, backend=backend, options=options)(X), net(X))
    (study,) = searched
    assert {str(t.plan): t.is_verified for t in study.trials} == {str(THREADS): True, str(INDUCTOR): True}
    assert "left to Inductor" not in caplog.text
    with open_storage(options["store"]) as storage:
        assert len(storage.list_studies()) == 1
