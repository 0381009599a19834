"""Compilations in calls of a known kind: they are counted and priced, and end once they cannot pay any more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile.backends import compile_callback, inductor
from torchwise.compile.recompiles import Price
from torchwise.plan import Plan
from torchwise.records import Interval
from torchwise.runtime import FallbackReason

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "captured_only")

PLAN = Plan(backend="inductor")
ROWS = 8


@pytest.fixture
def captured_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Inductor compile nothing, and graphs run as Dynamo captured them."""
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: lambda graph, _inputs: graph.forward)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each compilation take 25 seconds, by the clock that prices it."""
    clock = itertools.count(0, 25)
    monkeypatch.setattr(compile_callback, "time", SimpleNamespace(perf_counter=lambda: next(clock)))


class Alive(torch.nn.Module):
    """Works on as many rows as are positive, and in another way if they are few."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > 0]
        if len(rows) > 2:
            return torch.tanh(rows).sum(0)
        return self.few(rows)

    def few(self, rows: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.sin(rows).sum(0)


def alive(rows: int) -> torch.Tensor:
    x = -torch.ones(ROWS, 3)
    x[:rows] = torch.rand(rows, 3) + 0.5
    return x


def serve(**changes: Any) -> tuple[Any, Callable[[int], None]]:
    model = Alive().eval()
    fast = torchwise.apply(model, replace(make_decision(model, PLAN, alive(4)), **changes))

    def call(rows: int) -> None:
        x = alive(rows)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))

    return fast, call


def test_sizes_inside_a_call_are_counted_and_priced() -> None:
    fast, call = serve()
    for rows in (4, 4, 5, 5, 4):
        call(rows)
    counts = fast.statistics
    assert (counts.first_calls, counts.later_compiles, counts.recompiles) == (1, 1, 1)
    assert 0 < counts.later_compiles_s < 60
    assert counts.snapshot()["later_compiles_s"] == counts.later_compiles_s
    call(1)
    assert counts.later_compiles > 2, "also code that no call had reached before"


@pytest.mark.usefixtures("slow")
def test_later_compilations_end_once_they_cannot_pay_any_more() -> None:
    fast, call = serve()
    with heard() as alerts:
        for rows in (8, 7, 6, 5, 4, 3, 3, 3):
            call(rows)
    counts = fast.statistics
    assert (counts.later_compiles, counts.later_compiles_s) == (4, 100.0), "the fourth ends its call, and the plan"
    assert counts.original == {FallbackReason.RECOMPILE_LIMIT: 3}
    assert [alert.kind for alert in alerts] == ["recompile_limit"]
    assert "times, in 75 s, its last values are float32[7, 3]" in alerts[0].message


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("changes", "optimized"),
    [({"cold_s": 1000.0}, 0), ({"baseline_s": 2.0, "speedup": Interval(1.9, 2.0, 2.1)}, 1000)],
    ids=["dear from the start", "much was saved"],
)
def test_a_plan_that_costs_or_saves_more_may_compile_more(changes: dict[str, float], optimized: int) -> None:
    fast, call = serve(**changes)
    fast.statistics.optimized = optimized
    for rows in (8, 7, 6, 5, 4, 3, 3):
        call(rows)
    assert (fast.statistics.later_compiles, dict(fast.statistics.original)) == (5, {})


@pytest.mark.usefixtures("slow")
def test_code_that_no_call_reached_before_has_its_price_too() -> None:
    fast, call = serve(cold_s=5.0)
    call(8)
    assert fast.statistics.later_compiles == 0, "a first call is expected to compile"
    for rows in (1, 2):  # each compiles the code after the size, and the first also code for few rows
        call(rows)
    found = fast.statistics.later_compiles
    assert found > 2
    call(7)
    call(7)
    assert fast.statistics.original[FallbackReason.RECOMPILE_LIMIT] > 0


def test_an_hour_without_compilations_forgets_their_price() -> None:
    now, paid = [0.0], list[float]()
    price = Price(lambda: 60.0, paid.append, lambda: now[0])
    price.pay(50.0)
    assert not price.is_too_high
    price.pay(50.0)
    assert price.is_too_high
    now[0] = 3600.0
    assert not price.is_too_high
    price.pay(20.0)
    assert (price.spent_s, price.is_too_high, paid) == (20.0, False, [50.0, 50.0, 20.0])
