"""A plan that starts sooner answers the calls of a program until the decided plan is in place."""

from __future__ import annotations

import gc
import math
import sqlite3
import threading
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import EAGER_S, a_failure, a_study, a_trial, an_inspection
from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Approval, Decision, Interval, Standing, Trial
from torchwise.records import format as show
from torchwise.records.trial import Costs
from torchwise.runtime.program import StoredPlans
from torchwise.runtime.program.placement import PlacedComponent
from torchwise.runtime.program.start_costs import find_first_decision, seconds_per_call
from torchwise.store import open_storage

THREADS = torch.get_num_threads()
DECIDED, FIRST = Plan(threads=THREADS + 1), Plan(threads=THREADS + 2)
X = torch.randn(3, 4)
WARM_S = 100 * EAGER_S
"""The decided plan starts from warm caches in the time of as many calls of eager."""
FIRST_S = 2.2 * EAGER_S
WRITTEN = 5
"""The calls on which the first plan would save that, as a call of its takes half as long."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


def make_trials(first: Trial | None = None) -> tuple[Trial, ...]:
    """Return the trial of the decided plan, four times eager's speed, and of one that starts sooner, twice.

    A search keeps the compile caches of its decided plan alone, so the warm start of the first one does not count.
    """
    decided = a_trial(1, DECIDED, 4.0, costs=Costs(9000 * EAGER_S, WARM_S))
    return decided, first or a_trial(2, FIRST, 2.0, costs=Costs(FIRST_S, 0.0))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("torchwise.runtime.program.stored.MIN_TOLD_S", 0.0)
    return str(tmp_path / "s.db")


def keep(store: str, trials: tuple[Trial, ...], of: Any = None, name: str = "Net") -> Decision:
    """Keep a search for what a program calls with these trials, decided for the first of them."""
    workload = WorkloadSpec(f"live:program/{name}", device="cpu")
    decision = replace(
        make_decision(of or Net().eval(), DECIDED, X),
        workload=workload,
        speedup=Interval(3.9, 4.0, 4.1),
        baseline_s=EAGER_S,
        cold_s=9000 * EAGER_S,
        warm_s=WARM_S,
    )
    inspection = an_inspection(
        identity=decision.identity, structure=decision.structure, inputs=decision.inputs, weights=decision.weights
    )
    study = a_study(trials, workload=workload, decision=decision, inspection=inspection)
    with open_storage(store) as storage:
        storage.import_study(replace(study, environment=decision.environment))
    return decision


def run_calls(store: str, calls: int) -> StoredPlans:
    net = Net().eval()
    with StoredPlans("program", store) as plans, torch.no_grad():
        for _ in range(calls):
            net(X)
    return plans


def count_first(store: str, decision: Decision) -> int:
    """Return how many calls the first plan answers until the decided one would have saved its start."""
    with open_storage(store) as storage:
        first = find_first_decision(decision, WARM_S, storage)
    assert first is not None
    assert first.plan == FIRST
    return math.ceil(WARM_S / (seconds_per_call(first) - seconds_per_call(decision)))


@pytest.mark.parametrize("share", ["before", "first", "last", "decided", "more"])
def test_a_plan_that_starts_sooner_answers_until_the_decided_one_is_due(share: str, store: str) -> None:
    """Each is put in place once it would have saved as much as it takes to start. No call is lost."""
    decision, written = keep(store, make_trials()), WRITTEN
    most = count_first(store, decision)
    by_first = {"before": 0, "first": 1}.get(share, most)
    by_decided = {"decided": 1, "more": 7}.get(share, 0)
    plans = run_calls(store, written + by_first + by_decided)
    rows = [(plan, by_plan, sum(others.values())) for _, plan, by_plan, others in plans.list_calls()]
    expected = [(str(FIRST), by_first, written), (str(DECIDED), by_decided, 0)]
    assert rows == [row for row in expected if row[1]]
    starts = {"before": f"Net ran as written: {FIRST} takes", "decided": None, "more": None}
    said = starts.get(share, f"Net ran by {FIRST}: {DECIDED} takes {show.seconds(WARM_S)} to start")
    assert [said is not None and note.startswith(said) for note in plans.notes] == ([True] if said else [])


def test_the_module_is_as_before_with_each_plan(store: str) -> None:
    keep(store, make_trials())
    net = Net().eval()
    with StoredPlans("program", store) as plans, torch.no_grad():
        expected = Net.forward(net, X)
        for _ in range(410):
            assert torch.equal(net(X), expected)
    assert len(plans.placed) == 2
    assert isinstance(net, Net)
    assert type(net).__mro__[1] is Net, "the class of the first plan is gone"


SLOW = a_trial(2, FIRST, 0.5, costs=Costs(FIRST_S))
LATE = a_trial(2, FIRST, 2.0, costs=Costs(70 * EAGER_S))
"""It takes longer to start than it would save on the 134 calls before the decided plan is in place."""


@pytest.mark.parametrize("first", [SLOW, LATE, a_failure(number=2, plan=FIRST)], ids=["slow", "late", "failed"])
def test_a_plan_that_does_not_pay_within_so_few_calls_is_not_used(first: Trial, store: str) -> None:
    keep(store, make_trials(first))
    plans = run_calls(store, 137)
    assert [(plan, by_plan) for _, plan, by_plan, _ in plans.list_calls()] == [(str(DECIDED), 3)]


BACKEND = """replace(record, '"backend":"eager"', '"backend":"gone"')"""
TRANSFORM = """replace(record, '"transforms":[]', '"transforms":["gone"]')"""


@pytest.mark.parametrize("change", [BACKEND, TRANSFORM, "'{}'"], ids=["backend", "transform", "unreadable"])
def test_a_trial_of_no_use_by_now_leaves_the_decided_plan(change: str, store: str) -> None:
    """Its plug-in is gone, or another version wrote it."""
    keep(store, make_trials())
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE torchwise_trials SET record = {change} WHERE number = 2")
    plans = run_calls(store, 137)
    assert [(plan, by_plan) for _, plan, by_plan, _ in plans.list_calls()] == [(str(DECIDED), 3)]
    assert not plans.notes


def test_calls_in_another_form_do_not_bring_the_decided_plan_nearer(store: str) -> None:
    """It would answer none of them, as little as the first plan."""
    most = count_first(store, keep(store, make_trials()))
    net = Net().eval()
    with StoredPlans("program", store) as plans, torch.no_grad():
        for _ in range(WRITTEN + 1):
            net(X)
        for _ in range(most):
            with torch.autocast("cpu", torch.bfloat16):
                net(X)
            net.train()(X)
            net.eval()
    assert len(plans.placed) == 1
    assert "on 1 call." in next(iter(plans.notes))


def test_the_search_is_read_once_for_all_modules_of_a_structure(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, make_trials())
    asked: list[Any] = []
    monkeypatch.setattr(
        "torchwise.runtime.program.stored.find_first_decision", lambda *given: asked.append(given) or None
    )
    nets = [Net().eval() for _ in range(3)]
    with StoredPlans("program", store), torch.no_grad():
        for net in nets:
            net(X)
    assert len(asked) == 1


def test_a_rejected_plan_does_not_answer_before_another(store: str) -> None:
    decision = keep(store, make_trials())
    with open_storage(store) as storage:
        hardware = decision.environment.hardware
        storage.store_approval(
            Approval(decision.workload.target, "inference", hardware, FIRST, Standing.REJECTED, "bob")
        )
    plans = run_calls(store, 50)
    assert not plans.placed
    assert f"Net ran as written: {DECIDED} takes" in next(iter(plans.notes))


def test_only_the_search_of_the_very_decision_counts(store: str) -> None:
    """A later search of the same model may have other numerics than the decision permits."""
    keep(store, make_trials())
    plans = StoredPlans("program", store)
    plans._decisions["Net"] = [replace(plans._decisions["Net"][0], saved_s=1.0)]
    with plans, torch.no_grad():
        net = Net().eval()
        for _ in range(50):
            net(X)
    assert not plans.placed


def test_the_decided_plan_is_not_its_own_first_one(store: str) -> None:
    """Its cold start may have been measured as shorter than its warm one, on a busy machine."""
    decided, first = make_trials()
    count_first(store, keep(store, (replace(decided, costs=Costs(FIRST_S, WARM_S)), first)))


def test_a_start_within_a_second_needs_no_plan_before(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.runtime.program.stored.MIN_TOLD_S", 2 * WARM_S)
    keep(store, make_trials())
    assert not run_calls(store, 50).placed


def test_two_threads_put_one_plan_in_place_after_the_first(store: str) -> None:
    most = count_first(store, keep(store, make_trials()))
    net, both = Net().eval(), threading.Barrier(2)
    with StoredPlans("program", store) as plans, torch.no_grad():
        for _ in range(WRITTEN + most):
            net(X)
        ((_, first),) = plans.placed
        assert isinstance(first, PlacedComponent)
        succeed = first.find_successor
        assert succeed is not None
        first.find_successor = lambda: succeed() if both.wait(60) >= 0 else None
        threads = [threading.Thread(target=torch.no_grad()(net), args=(X,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        net(X)
    assert [plan for _, plan, _, _ in plans.list_calls()] == [str(FIRST), str(DECIDED)]
    assert sum(by_plan + sum(others.values()) for _, _, by_plan, others in plans.list_calls()) == WRITTEN + most + 3
    assert not plans.notes


@pytest.mark.parametrize(("calls", "placed"), [(7, 1), (410, 2)])
def test_a_module_that_is_gone_takes_its_plans_along(calls: int, placed: int, store: str) -> None:
    keep(store, make_trials())
    net = Net().eval()
    with StoredPlans("program", store) as plans, torch.no_grad():
        for _ in range(calls):
            net(X)
        assert len(plans.placed) == placed
        weight = weakref.ref(net.inner.weight)
        del net
        gc.collect()
        assert weight() is None


def test_a_compiled_function_has_both_plans_too(store: str) -> None:
    """Its callers hold the function itself, so both plans are put behind it."""
    double = torch.nn.functional.relu
    most = count_first(store, keep(store, make_trials(), of=double, name="relu"))
    with StoredPlans("program", store) as plans, torch.no_grad():
        compiled = torch.compile(double, backend="eager")
        for _ in range(WRITTEN + most + 2):
            assert torch.equal(compiled(X), X.relu())
    rows = [(plan, by_plan) for _, plan, by_plan, _ in plans.list_calls()]
    assert rows == [(str(FIRST), most), (str(DECIDED), 2)]
    assert compiled.placed is plans.placed[1][1]
