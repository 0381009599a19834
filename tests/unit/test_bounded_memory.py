"""Inputs whose sizes never come again: nothing that is remembered for a signature grows without a limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_capture_logic import Machine, capture_call

from live_decisions import make_decision
from torchwise.compile import CompiledPlan, signature
from torchwise.compile.aot import _Loaded
from torchwise.compile.backends.graphs import compile_call
from torchwise.compile.cuda_graphs.host_values import HostValues
from torchwise.compile.signature import forget_oldest
from torchwise.plan import Plan
from torchwise.runtime import circuit_breaker
from torchwise.runtime.circuit_breaker import PlanCircuits
from torchwise.runtime.dispatch import Dispatcher

DYNAMIC = Plan(backend="inductor", shapes="dynamic")


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(signature, "MAX_SIGNATURES", 3)
    with torch.no_grad():
        yield 3


def test_entries_added_first_are_forgotten_first() -> None:
    known = dict.fromkeys("abcde")
    assert forget_oldest(known) == ["a", "b"]
    assert forget_oldest(known, 1) == ["c", "d"]
    assert (list(known), forget_oldest(known)) == (["e"], [])


class Contended(dict[str, None]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("dictionary changed size during iteration")


def test_another_threads_writes_end_the_forgetting_and_nothing_else() -> None:
    assert forget_oldest(Contended.fromkeys("abcde"), 1) == []


class Counting(torch.nn.Module):
    """A model that writes to its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + 1


def test_a_dispatcher_forgets_all_of_a_size_together(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    model = Counting().eval()
    served = Dispatcher(model, make_decision(model, DYNAMIC, torch.randn(3, 4)))
    compiled = CompiledPlan(DYNAMIC, model, lambda _args, _kwargs: model, lambda: None)
    monkeypatch.setattr(served._plan, "compile", lambda _args, _kwargs: compiled)
    monkeypatch.setattr(served._plan, "compiled", compiled)
    for rows in [*range(2, 9), 2, 8]:
        given = torch.randn(rows, 4)
        assert torch.equal(served(given), given + 1)
        sizes = [*map(len, (served._served, served._calls, served._writes._written))]
        assert max(sizes) <= limit
        assert sizes[0] == sizes[1] == sizes[2]
    assert (served.statistics.optimized, served.statistics.first_calls) == (9, 8)
    assert model.calls == 9


def test_calls_of_a_size_that_is_forgotten_have_no_path_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MAX_SIGNATURES", 1)
    model = Counting().eval()
    served = Dispatcher(model, make_decision(model, DYNAMIC, torch.randn(3, 4)))
    first, second = (signature.signature_of((torch.randn(rows, 4),), {}) for rows in (2, 3))
    served._note_served(first, None)
    served._calls[first], served._last = model, (lambda _args, _kwargs: True, model)
    assert not served._writes.may_go_on(first, (model.calls,), {})
    served._note_served(second, None)
    assert (list(served._served), list(served._writes._written)) == ([second], [second])
    assert (served._calls, served._last) == ({}, None), "which skip the check of writes from the second call on"


def test_paths_around_compiled_code_are_bounded(limit: int) -> None:
    loaded = _Loaded(torch.sin, [])
    loaded._find_path = lambda _args, _kwargs: torch.sin  # type: ignore[method-assign]
    for rows in range(1, 7):
        given = torch.randn(rows)
        assert torch.equal(loaded(given), given.sin())
    assert len(loaded._paths) == limit


def test_code_for_all_sizes_remembers_few_of_them(limit: int) -> None:
    compiled = compile_call(lambda x, y: x + y, DYNAMIC, lambda _alone: ("eager", ()))
    for rows in range(2, 8):
        given = torch.randn(rows)
        for other in (given, given + 1):  # the first shares its memory
            assert torch.equal(compiled(given, other), given + other)
        assert max(len(compiled._paths), len(compiled._reading)) <= limit
    for rows in range(2, 8):
        given = torch.randn(rows + 1)
        assert torch.equal(compiled(given[1:], given[:-1]), given[1:] + given[:-1])
        assert max(len(compiled._paths), len(compiled._reading)) <= limit


def test_values_from_the_cpu_are_freed_with_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    captured = capture_call(torch.sin)
    captured(torch.randn(2))
    captured._host[next(iter(captured._graphs))] = HostValues()
    captured.close()
    assert not captured._graphs
    assert not captured._host


def test_a_frozen_plans_circuits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "MAX_CIRCUITS", 2)
    circuits = PlanCircuits()
    for key in range(5):
        circuits.record_frozen(key)
        circuits.record_failure(key)
    assert (len(circuits._frozen), len(circuits._failed)) == (2, 2)
    assert circuits.find_wait(4) is not None
    assert circuits.find_wait(0) is None
