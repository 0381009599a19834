"""Calls of a tuned program are answered as the program alone would answer them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_program import Searches, decide_at_once

import torchwise as tw
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
        return [*(call_under_autocast(net) for _ in range(5)), net(X), net(torch.ones(7, 4))]

    alone = program()
    report = tw.tune_program(program, store=store)
    answers = program()
    component = report.modules[0].component
    assert component is not None
    statistics = component.statistics
    assert (statistics.optimized, statistics.original) == (5, {"autocast_differs": 2})
    report.restore()
    with StoredPlans(program.__qualname__, store) as plans:
        later = program()
    assert [found.statistics.optimized for _, found in plans.placed] == [5]
    for expected, *given in zip(alone, answers, later, strict=True):
        assert all(torch.equal(one, expected) and one.dtype is expected.dtype for one in given)
