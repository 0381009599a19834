"""Calls of a tuned program are answered as the program alone would answer them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_program import THREADS, Searches, decide_at_once

import torchwise as tw
from torchwise.plan import Plan
from torchwise.runtime.bucketing.bucketed import DYNAMIC
from torchwise.runtime.program import StoredPlans

X = torch.randn(3, 4)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    return decide_at_once(monkeypatch)


@torch.no_grad()
def call_under_autocast(net: torch.nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net(X)  # type: ignore[no-any-return]


def test_calls_without_autocast_stay_without_beside_those_with_it(searches: Searches, tmp_path: Path) -> None:
    net, store = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval(), str(tmp_path / "s.db")

    @torch.no_grad()
    def program() -> list[torch.Tensor]:
        # So many that a pause in one of the other calls does not make those the longer ones.
        return [*(call_under_autocast(net) for _ in range(200)), net(X), net(torch.ones(7, 4))]

    alone = program()
    report = tw.tune_program(program, store=store)
    answers = program()
    component = report.modules[0].component
    assert component is not None
    statistics = component.statistics
    assert (statistics.optimized, statistics.original) == (200, {"autocast_differs": 2})
    report.restore()
    with StoredPlans(program.__qualname__, store) as plans:
        later = program()
    assert [found.statistics.optimized for _, found in plans.placed] == [200]
    for expected, *given in zip(alone, answers, later, strict=True):
        assert all(torch.equal(one, expected) and one.dtype is expected.dtype for one in given)


def doubled(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(f)
    def call(x: torch.Tensor) -> torch.Tensor:
        return 2 * f(x)

    return call


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize(
    "decorate",
    [
        pytest.param(lambda: torch.compile(doubled(add), backend="eager"), id="below torch.compile"),
        pytest.param(lambda: torch.compile(torch.no_grad()(add), backend="eager"), id="no_grad"),
        pytest.param(lambda: doubled(torch.compile(add, backend="eager")), id="above torch.compile"),
    ],
)
def test_a_function_keeps_the_decorators_that_it_was_compiled_with(
    decorate: Callable[[], Any], searches: Searches
) -> None:
    def program() -> Any:
        function = decorate()
        for _ in range(3):
            function(X)
        return function

    report = tw.tune_program(program)
    function, given = report.returned, X.clone().requires_grad_()
    expected = decorate()(given)
    answer = function(given)
    assert torch.equal(answer, expected)
    assert answer.requires_grad is expected.requires_grad
    with torch.no_grad():
        assert torch.equal(function(X), expected)
    (module,) = report.modules
    assert module.component is not None
    assert module.component.statistics.optimized >= 1


def test_a_stored_plan_is_used_from_the_first_call_in_its_mode_on(searches: Searches, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")

    def program() -> None:
        net = torch.nn.Sequential(torch.nn.Linear(4, 4))
        for _ in range(2):
            net(X).sum().backward()
        net.eval()
        with torch.no_grad():
            for _ in range(9):
                net(X)

    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program()
    assert [(name, found.statistics.optimized) for name, found in plans.placed] == [("Sequential", 9)]
    assert not plans.notes


def test_a_part_that_is_called_later_than_its_module_has_its_stored_plan(searches: Searches, tmp_path: Path) -> None:
    class Agent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.calls = torch.nn.Sequential(torch.nn.Linear(4, 4)), 0

        def forward(self, stream: Any) -> Any:
            self.calls += 1
            return [self.part(x) for x in stream] if self.calls > 1 else list(stream)

    store = str(tmp_path / "s.db")

    @torch.no_grad()
    def program() -> None:
        agent = Agent().eval()
        for _ in range(6):
            agent(x for x in [X])

    tw.tune_program(program, store=store).restore()
    with StoredPlans(program.__qualname__, store) as plans:
        program()
    assert [(name, found.statistics.optimized) for name, found in plans.placed] == [("Sequential", 5)]


class Memory:
    """A cache of a fixed size, as of a language model, which each call writes to."""

    def __init__(self) -> None:
        self.keys, self.length = torch.zeros(8, 4), torch.tensor(0)


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, memory: Memory) -> dict[str, Any]:
        memory.keys.index_copy_(0, memory.length[None], self.layer(x)[None])
        memory.length.add_(1)
        return {"next": memory.keys.sum(0).tanh(), "memory": memory}


@pytest.mark.parametrize("plan", [THREADS, *DYNAMIC], ids=str)
def test_conversations_in_turn_through_one_tuned_model_stay_apart(plan: Plan, searches: Searches) -> None:
    searches.plan = plan
    net = Decoder().eval()

    @torch.no_grad()
    def program(turns: tuple[int, ...] = (0, 0, 0)) -> list[torch.Tensor]:
        memories, said = [Memory(), Memory()], [torch.ones(4), -torch.ones(4)]
        for turn in turns:
            answer = net(said[turn], memory=memories[turn])
            said[turn] = answer["next"]
            assert answer["memory"] is memories[turn]
        return [*said, *(memory.keys for memory in memories), *(memory.length for memory in memories)]

    turns = (0, 1, 1, 0, 1, 0)
    alone = program(turns)
    report = tw.tune_program(program)
    assert all(map(torch.allclose, program(turns), alone))
    component = report.modules[0].component
    assert component is not None
    assert (component.statistics.optimized, component.statistics.original) == (6, {})
