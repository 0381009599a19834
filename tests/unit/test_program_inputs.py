"""Modules of a program take and return anything: they are tuned with it, or it is named and handed through."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import attrs
import numpy as np
import pytest
import torch
from PIL import Image
from test_program import Searches, decide_at_once

import torchwise as tw
from torchwise.records import Outcome
from torchwise.runtime.program import StoredPlans
from torchwise.trial.plain_call import run_plainly
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload
from torchwise.workload.module_state import State


class Net(torch.nn.Module):
    """Does something with its layer."""

    def __init__(self, what: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.what = torch.nn.Linear(4, 4), what

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.what(self.layer, *args, **kwargs)


class Agent(torch.nn.Module):
    """Reads inputs that nobody can copy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(lambda layer, x: layer(x))

    def forward(self, stream: Iterator[torch.Tensor]) -> list[torch.Tensor]:
        return [self.net(x) for x in stream]


@attrs.define
class Attrs:
    x: torch.Tensor
    scale: int = 2


@dataclass(slots=True)
class Slots:
    x: torch.Tensor
    mask: Any = None


class Typed(TypedDict):
    x: torch.Tensor


class Named(NamedTuple):
    x: torch.Tensor


class Custom:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


X = torch.randn(3, 4)
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attrs": (lambda layer, given: Attrs(layer(given.x) * given.scale), {"given": Attrs(X)}),
    "slots": (lambda layer, given: Slots(layer(given.x), given.mask), {"given": Slots(X)}),
    "typed dict": (lambda layer, given: Typed(x=layer(given["x"])), {"given": Typed(x=X)}),
    "named tuple": (lambda layer, given: Named(layer(given.x)), {"given": Named(X)}),
    "custom": (lambda layer, given: Custom(layer(given.x)), {"given": Custom(X)}),
    "namespace": (lambda layer, given: types.SimpleNamespace(x=layer(given.x)), {"given": types.SimpleNamespace(x=X)}),
    "image": (
        lambda layer, given: layer(torch.tensor(np.asarray(given)).float()),
        {"given": Image.new("L", (4, 2), 3)},
    ),
    "None and flags": (
        lambda layer, x, mask, flag: (layer(x), mask, flag),
        {"x": X, "mask": None, "flag": True},
    ),
    "array": (lambda layer, given: layer(torch.from_numpy(given)).numpy(), {"given": np.ones((2, 4), np.float32)}),
    "function": (lambda layer, x, then: then(layer(x)), {"x": X, "then": torch.sin}),
}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    return decide_at_once(monkeypatch)


def read(answer: Any) -> list[Any]:
    """List the tensors and plain values in an answer of any type."""
    return list(State({"": answer}).leaves().values())


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_a_module_is_tuned_with_inputs_and_outputs_of_any_type(name: str, searches: Searches) -> None:
    what, given = CASES[name]
    net = Net(what).eval()
    workload = Workload(net, (Example((), given),))
    run_plainly(workload, "inference")
    verdict = verify(Subject(workload, net, net), extra_draws=1)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    expected = net(**given)
    report = tw.tune_program(lambda: net(**given))
    answer = net(**given)
    assert type(answer) is type(expected)
    assert all(map(torch.equal, *map(pick_tensors, (answer, expected))))
    (module,) = report.modules
    assert module.component is not None
    assert (module.component.statistics.optimized, module.component.statistics.original) == (1, {})
    report.restore()
    assert type(net) is Net


def pick_tensors(answer: Any) -> list[torch.Tensor]:
    found = [torch.as_tensor(one) for one in read(answer) if isinstance(one, (torch.Tensor, np.ndarray))]
    assert found
    return found


@torch.no_grad()
def test_parts_of_a_module_whose_inputs_cannot_be_copied_are_tuned(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    agent = Agent().eval()
    expected = agent(iter([X, X]))

    def program() -> Any:
        return agent(one for one in [X, X])

    report = tw.tune_program(program, store=store)
    assert all(map(torch.equal, report.returned, expected))
    notes = {module.record.name: module.record.notes for module in report.modules}
    assert notes["Net"] == ()
    assert "some inputs cannot be copied" in notes["Agent"][0]
    assert "generator" in notes["Agent"][0]
    assert notes["Agent"][1] == "the calls of its parts were recorded instead"
    assert [module.record.calls for module in report.modules] == [2, 1]
    assert all(map(torch.equal, program(), expected))
    assert [(m.record.name, m.component.statistics.optimized) for m in report.modules if m.component] == [("Net", 2)]
    report.restore()
    with StoredPlans(program.__qualname__, store) as plans:
        assert all(map(torch.equal, program(), expected))
    assert [(name, component.statistics.optimized) for name, component in plans.placed] == [("Net", 2)]


@torch.no_grad()
def test_an_output_that_cannot_be_compared_is_named(searches: Searches) -> None:
    def generate(layer: torch.nn.Module, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield layer(x)

    net = Net(generate).eval()
    verdict = verify(Subject(Workload(net, (Example((X,)),)), net, net), extra_draws=1)
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "output is a generator, which computes nothing before it is read" in verdict.reason
