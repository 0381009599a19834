"""A program whose modules are judged by the distribution of their outputs: those that draw nothing are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_program import Searches, decide_at_once

import torchwise as tw
from torchwise.errors import InputError
from torchwise.plan import EAGER, Numerics
from torchwise.runtime.api import Study
from torchwise.runtime.program import tuning
from torchwise.study.request import NotRandomError

COMPARED = "it draws no random numbers, so its outputs are compared by value instead of by distribution"


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """Decide at once, and refuse to compare distributions of modules that draw nothing, as a study does."""
    found = decide_at_once(monkeypatch)

    def search(request: Any, workload: Any, store: str | None, **options: Any) -> Study:
        if request.workload.metric == "distribution" and "Fixed" in repr(workload.call):
            raise NotRandomError("it draws no random numbers")
        return found(request, workload, store, **options)

    monkeypatch.setattr(tuning, "search", search)
    return found


def run_both(*rows: int) -> Callable[[], None]:
    nets = Fixed().eval(), Noisy().eval()

    @torch.no_grad()
    def program() -> None:
        for count in rows:
            for net in nets:
                net(torch.ones(count, 4))

    return program


@pytest.mark.parametrize(
    ("allow", "expected"),
    [("exact", "exact"), ("lower-precision", "lower-precision"), ("quantized", "lower-precision")],
)
def test_a_module_that_draws_nothing_is_compared_by_value(allow: Any, expected: str, searches: Searches) -> None:
    report = tw.tune_program(run_both(3), metric="distribution", allow=allow, progress=False)
    asked = {
        type(workload.call).__name__: (request.workload.metric, str(request.allow), request.workload.tolerance)
        for request, workload in searches.asked
    }
    assert asked == {"Fixed": (None, expected, None), "Noisy": ("distribution", allow, None)}
    notes = {module.record.name: module.record.notes for module in report.modules}
    assert COMPARED in notes["Fixed"]
    assert COMPARED not in notes["Noisy"]
    assert all(module.record.plan is not None for module in report.modules)


def test_the_second_search_for_other_sizes_compares_alike_and_keeps_to_the_budget(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    refuse = tuning.search

    def search(request: Any, *rest: Any, **options: Any) -> Study:
        now[0] += 10.0
        return refuse(request, *rest, **options)

    monkeypatch.setattr(tuning, "search", search)
    net = Fixed().eval()
    with torch.no_grad():
        tw.tune_program(lambda: [net(torch.ones(rows, 4)) for rows in (3, 5)], metric="distribution", budget=100.0)
    assert [(request.workload.metric, round(request.budget_s)) for request, _ in searches.asked] == [
        (None, 90),
        (None, 80),
    ]


def test_another_refusal_stays_one(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_asked: Any, **_options: Any) -> Study:
        raise InputError("it cannot be sent")

    monkeypatch.setattr(tuning, "search", search)
    report = tw.tune_program(run_both(3), metric="distribution", progress=False)
    assert {module.record.notes for module in report.modules} == {("not tuned: it cannot be sent",)}


def test_a_real_search_judges_each_module_by_its_own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MIN_SHARE", 0.0)
    options: dict[str, Any] = {"plans": [EAGER], "effort": "quick", "progress": False, "iterations": 5}
    report = tw.tune_program(run_both(3), metric="distribution", store=str(tmp_path / "s.db"), **options)
    assert {module.record.name: module.record.plan for module in report.modules} == {"Fixed": "eager", "Noisy": "eager"}
    metrics = {name: study.record.workload.metric for name, study in report.studies.items()}
    assert metrics == {"Fixed": None, "Noisy": "distribution"}
    assert Numerics.of("lower-precision").allows(report.studies["Fixed"].record.allow)
