"""The backend's decisions, made in real workers and found again in the store, and graphs that travel."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from dynamo_graphs import capture_graph, decision_for
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.runtime.dynamo import backend as entry
from torchwise.runtime.dynamo import decide
from torchwise.runtime.dynamo.decide import Options
from torchwise.store import open_storage
from torchwise.workload.identity import structure

THREADS = Plan(threads=torch.get_num_threads() + 1)
PROGRAM = """
import sys
from dataclasses import replace
import torch
from brief import make_brief
from torchwise.runtime.dynamo import backend, decide
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS

EFFORTS.update({name: make_brief(profile) for name, profile in EFFORTS.items()})
run_study = decide.run_study

def search(request, *given):
    if sys.argv[2] == "stored":
        raise SystemExit("it is tuned again")
    return run_study(replace(request, plans=(Plan(threads=1),)), *given)

decide.run_study = search
with torch.no_grad():
    torch.compile(torch.nn.Linear(3, 3), backend=backend, options={"store": sys.argv[1]})(torch.ones(2, 3))
print("decided", decide.SPENT.seconds > 0)
"""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Count the studies, and let each try a single plan that compiles nothing."""
    asked: list[Any] = []
    original = decide.run_study

    def count_request(request: Any, *args: Any) -> Any:
        asked.append(request)
        return original(replace(request, plans=(THREADS,)), *args)

    monkeypatch.setattr(decide, "run_study", count_request)
    monkeypatch.setattr(decide, "SPENT", decide.Spent())
    torch._dynamo.reset()
    yield asked
    torch._dynamo.reset()


@pytest.mark.usefixtures("brief_searches")
def test_the_second_compilation_finds_the_decision_in_the_store(searches: list[Any], tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.0)), torch.ones(2, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def compile_model(**options: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(model, backend=entry, options={"store": store, **options})

    with torch.no_grad():
        assert torch.equal(compile_model()(x), model(x))
        assert len(searches) == 1
        assert torch.equal(compile_model()(x), model(x))
        assert len(searches) == 1  # the same graph: from the store
        compile_model(calls=3)(x)
        assert len(searches) == 2  # other calls are weighed anew
        compile_model()(torch.ones(4, 3))
        assert len(searches) == 3  # another shape
    compile_model()(x).sum().backward()
    assert [request.workload.mode for request in searches] == ["inference"] * 3 + ["training"]
    assert {request.workers for request in searches} == {1}, "other processes of the program may tune meanwhile"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with open_storage(store) as storage:
        assert {s.target[:11] for s in storage.list_studies()} == {"live:graph-"}


@pytest.mark.nightly
def test_the_next_process_finds_it_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for asked, said in (("anything", "decided True"), ("stored", "decided False")):
        command = [sys.executable, str(program), str(tmp_path / "store.db"), asked]
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=variables)
        assert said in result.stdout, result.stderr


@pytest.mark.usefixtures("brief_searches")
def test_a_decision_of_another_machine_is_not_taken(
    searches: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(store=str(tmp_path / "store.db"))
    with torch.no_grad():
        captured = capture_graph(torch.sin, torch.ones(3))
    decide.decide(captured, options)
    decide.decide(captured, options)
    assert len(searches) == 1
    detect = decide.environment.detect
    monkeypatch.setattr(decide.environment, "detect", lambda device: replace(detect(device), torch="1.0"))
    decide.decide(captured, options)
    assert len(searches) == 2


def test_what_is_not_tuned_once_the_budget_is_spent(searches: list[Any], tmp_path: Path) -> None:
    with torch.no_grad():
        captured = capture_graph(torch.sin, torch.ones(3))
    decide.SPENT.seconds = 7.0
    with pytest.raises(UnsupportedError, match="the budget of 7 s"):
        decide.decide(captured, Options(store=str(tmp_path / "store.db"), budget=7))
    assert not searches


def test_a_graph_of_many_sizes_is_tried_with_dynamic_shapes_alone() -> None:
    with torch.no_grad():
        one = capture_graph(torch.sin, torch.ones(3), dynamic=True)
        other = capture_graph(torch.sin, torch.ones(3), dynamic=False)
    assert decide._request(one, Options()).plans == decide.DYNAMIC
    assert decide._request(other, Options()).plans is None


def test_no_graph_takes_longer_than_the_effort_allows() -> None:
    with torch.no_grad():
        captured = [capture_graph(torch.sin, torch.ones(3), dynamic=dynamic) for dynamic in (True, False)]
    for graph in captured:
        assert decide._request(graph, Options(compile_timeout=9)).make_limits(1.0).compile_s == 9
        assert decide._request(graph, Options()).trial_s == EFFORTS["quick"].trial_s, (
            "the user waits, and named no plan"
        )


def test_a_graph_travels_with_what_takes_no_tensor() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = x * 2
        return y, torch.rand(2) * x.to(dtype=torch.float64).sum()

    x = torch.ones(2, requires_grad=True)
    captured = capture_graph(call, x)
    graph = cloudpickle.loads(cloudpickle.dumps(captured.graph))
    first, second = graph(x), graph(x)
    assert not first[0].requires_grad
    assert second[1].requires_grad
    assert not torch.equal(first[1], second[1])
    assert structure(graph) == structure(captured.graph)


def test_what_makes_another_graph_of_it() -> None:
    ones = torch.ones(2)
    same = structure(capture_graph(lambda x, y: x * y, ones, ones + 1).graph)
    assert structure(capture_graph(lambda x, y: x * y, ones, ones + 1).graph) == same
    assert structure(capture_graph(lambda x, y: x / y, ones, ones + 1).graph) != same
    assert structure(capture_graph(lambda x, y: x * y, ones, torch.ones(2, requires_grad=True)).graph) != same


def test_an_example_is_a_leaf_without_history() -> None:
    x = torch.ones(2, requires_grad=True) * 2
    (example,) = capture_graph(torch.sin, x).example.args
    assert example.is_leaf
    assert example.requires_grad
    assert x.grad_fn is not None


def test_torch_finds_the_backend_by_its_name() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="torchwise")
    assert found.load() is entry
    assert "torchwise" in torch._dynamo.list_backends()


@pytest.mark.slow
@pytest.mark.parametrize("transforms", [(), pytest.param(("complex_to_real",), marks=pytest.mark.nightly)])
def test_compiled_graphs_train_as_eager_does(transforms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(backend="inductor", transforms=transforms)
    module = importlib.import_module("torchwise.runtime.dynamo.graph_backend")
    monkeypatch.setattr(module, "decide", lambda captured, asked: decision_for(captured, plan))
    torch._dynamo.reset()

    class Wave(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase = torch.nn.Parameter(torch.rand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * torch.exp(1j * self.phase)).abs() if transforms else x * self.phase.cos()
            torch._dynamo.graph_break()
            return y.square().sum()

    model, x = Wave(), torch.rand(8)
    compiled = torch.compile(model, backend=entry)
    for _ in range(2):
        expected = torch.autograd.grad(model(x + 0.1), [model.phase])
        found = torch.autograd.grad(compiled(x + 0.1), [model.phase])
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            model.phase.mul_(0.5)  # the weights that it trains are read, and not copied
