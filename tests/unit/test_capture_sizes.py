"""Captured plans for all sizes: a graph for each size that comes, up to a limit, with a recording that needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from synthetic import TRAITS, a_space
from test_capture_logic import Machine, capture_call

from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.compile.cuda_graphs import recording_limit
from torchwise.plan import EAGER, Plan, Trait
from torchwise.runtime.dispatch import Dispatcher
from torchwise.workload import Example

ALL_SIZES = Plan(capture="call", shapes="dynamic")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with torch.no_grad():
        yield Machine(monkeypatch)


def test_one_captured_plan_answers_sizes_that_no_example_had(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(4, 4).eval()
    answered = Dispatcher(net, make_decision(net, ALL_SIZES, torch.randn(3, 4)))
    compiled = compile_plan(net, ALL_SIZES, Example((torch.randn(3, 4),)), device="cuda", mode="inference")
    monkeypatch.setattr(answered._plan, "compile", lambda _args, _kwargs: compiled)
    for rows in (3, 5, 7, 5, 3, 7):
        given = torch.randn(rows, 4)
        assert torch.equal(answered(given), net(given))
    assert answered.statistics.optimized == 6
    assert machine.recorded == 3


def test_sizes_beyond_the_limit_are_answered_without_graphs_until_all_make_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_limit, "MAX_SIGNATURES", 2)
    monkeypatch.setattr(recording_limit, "FLUSH_AFTER", 4)
    captured = capture_call(torch.sin)

    def call(*counts: int) -> int:
        before = machine.recorded
        for count in counts:
            given = torch.randn(count, 4)
            assert torch.equal(captured(given), given.sin())
            assert machine.count_graphs() <= 2
        return machine.recorded - before

    assert call(1, 2, 1, 2) == 2
    assert call(3, 4, 1, 5, 2) == 0, "graphs of sizes that go on coming are kept"
    assert call(6, 7, 6, 7) == 2, "sizes that come now got the room"


def test_a_search_captures_for_all_sizes_where_they_vary() -> None:
    space = a_space("cuda", traits=TRAITS | {Trait.SIZES_VARY})
    near_eager = {plan for plan, choice in space.neighbours(EAGER) if choice.key == ("capture", "call")}
    assert ALL_SIZES in near_eager
    compiled = Plan(backend="inductor", shapes="dynamic")
    assert replace(compiled, capture="call") in {plan for plan, _ in space.neighbours(compiled)}
    assert replace(compiled, capture="call") in {plan for plan, _ in space.neighbours(ALL_SIZES)}
