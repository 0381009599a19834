"""A compile that outlasts its prediction by far is ended, if there is a prediction and it could not pay any more."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sketches import CAPTURE, HERE, INDUCTOR, PASSED, a_history, a_trial, an_inspection

from builders import a_study
from torchwise.plan import Plan
from torchwise.plan.space import compile_factor_of
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, Measurement, Trial, TrialState, WorkerStage, codec
from torchwise.records.listener import Listener
from torchwise.store import Storage, open_storage
from torchwise.study import Request, run_study, search_loop
from torchwise.study.compile_limit import (
    CALLS,
    MIN_COMPILES,
    MIN_S,
    PATIENCE,
    SHARE,
    CompileLimit,
    find_compile_limit,
    find_payable_s,
    read_compile_ratios,
)
from torchwise.study.history import WARM_SHARE, History
from torchwise.study.option import HOPE
from torchwise.study.samplers import ListedSampler
from torchwise.trial import Job, Limits
from torchwise.trial.job import Attempt

ROLLED = Plan(backend="inductor", scope="rolled")
QUICK_S = 120.0
"""Seconds of a search with effort quick."""


def read_nothing() -> Mapping[str, float]:
    return {}


def find_limit(
    history: History, plan: Plan = ROLLED, search_s: float = QUICK_S, ratios: Mapping[str, float] | None = None
) -> CompileLimit:
    return find_compile_limit(plan, history, search_s, lambda: ratios or {})


def a_fast_model(*trials: Trial, **asked: Any) -> History:
    """Return the knowledge of a model whose calls take too little time in all to pay for much compiling."""
    return a_history(*trials, baseline_s=1e-6, **asked)


def test_there_is_no_limit_without_a_prediction() -> None:
    assert find_limit(a_fast_model()) == CompileLimit(math.inf)
    other = a_trial(Plan(backend="openvino"), cold_s=1.0)
    assert find_limit(a_fast_model(other)).seconds == math.inf, "another compiler's time tells nothing"
    assert find_limit(a_fast_model(a_trial(CAPTURE, cold_s=1.0)), CAPTURE).seconds == math.inf, "it compiles nothing"


@pytest.mark.parametrize("cold_s", [50.0, 100.0])
def test_a_compile_may_take_a_multiple_of_the_longest_seen_in_the_search(cold_s: float) -> None:
    quicker = a_trial(replace(INDUCTOR, threads=1), cold_s=cold_s / 4)
    history = a_fast_model(a_trial(INDUCTOR, cold_s=cold_s), quicker)
    longest_s = cold_s * compile_factor_of(ROLLED) / compile_factor_of(INDUCTOR)
    assert PATIENCE * longest_s > MIN_S
    assert find_limit(history).seconds == pytest.approx(PATIENCE * longest_s, abs=0.1)


def test_a_compile_may_always_take_a_while_and_a_share_of_the_search() -> None:
    history = a_fast_model(a_trial(INDUCTOR, cold_s=0.1))
    assert find_limit(history).seconds == pytest.approx(MIN_S, abs=0.1)
    assert find_limit(history, search_s=7200.0).seconds == pytest.approx(SHARE * 7200, abs=0.1)
    assert find_limit(history, search_s=math.inf) == CompileLimit(), "the user named the plans"


def test_a_compile_that_could_still_pay_is_not_ended() -> None:
    """A plan that halves the leader's time saves 0.25 s a call over 1,000 calls, and need not compile the leader."""
    leader = a_trial(INDUCTOR, 2.0, cold_s=10.0)
    history = a_history(leader, baseline_s=1.0, calls=1000)
    assert find_payable_s(history) == pytest.approx(HOPE * 0.5 * 1000 + 10, rel=0.01)
    assert find_limit(history).seconds == pytest.approx(find_payable_s(history) + CALLS * 1.0, rel=0.01)
    often = a_history(leader, baseline_s=1.0, calls=1000, restarts=11)
    saved_s = HOPE * 0.5 * 1000 + often.overhead_of(INDUCTOR)
    assert find_payable_s(often) == pytest.approx(saved_s / (1 + 10 * WARM_SHARE), rel=0.01), "each start compiles"


@pytest.mark.parametrize("asked", [{"objective": "memory"}, {"memory_limit": 1}])
def test_a_search_for_memory_has_no_such_limit(asked: dict[str, Any]) -> None:
    trial = a_trial(INDUCTOR, cold_s=0.1, peak=1, eager_peak=2**20)
    inspection = an_inspection(1e-6, peak_memory=2**20)
    assert find_limit(a_history(trial, inspection=inspection, **asked)).seconds == math.inf


def test_earlier_studies_tell_how_long_compiles_take_here() -> None:
    plain_s = a_fast_model().predict_cold_s(INDUCTOR)
    assert PATIENCE * plain_s > MIN_S
    found = find_limit(a_fast_model(), INDUCTOR, ratios={"inductor": 3.0})
    assert found.seconds == pytest.approx(PATIENCE * 3 * plain_s, abs=0.1)
    assert "--compile-timeout" in found.note
    quick = find_limit(a_fast_model(), INDUCTOR, ratios={"inductor": 0.01})
    assert quick.seconds == pytest.approx(PATIENCE * plain_s, abs=0.1), "those models were small"
    assert find_limit(a_fast_model(), INDUCTOR, ratios={"openvino": 3.0}).seconds == math.inf


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


def keep_study(storage: Storage, name: str, *cold_s: float, **changes: Any) -> int:
    """Store a study with one trial of Inductor for each of these compile times, and return its id."""
    trials = [a_trial(replace(INDUCTOR, threads=n + 1), number=n, cold_s=s) for n, s in enumerate(cold_s)]
    inspection = an_inspection(1e-6, identity=name * 16, structure=name * 16)
    fields = {"workload": WorkloadSpec(f"{name}.py"), "inspection": inspection, "environment": HERE, **changes}
    return storage.import_study(a_study(trials, decided=None, **fields)).id


def test_the_ratios_are_those_of_other_studies_on_this_machine(storage: Storage) -> None:
    plain_s = a_fast_model().predict_cold_s(INDUCTOR)
    own = keep_study(storage, "a", 90 * plain_s)
    keep_study(storage, "b", 2 * plain_s, 5 * plain_s)
    assert read_compile_ratios(storage, own, HERE) == {}, f"fewer than {MIN_COMPILES}"
    keep_study(storage, "c", 3 * plain_s)
    keep_study(storage, "d", 80 * plain_s, environment=replace(HERE, cpu="another"))
    [(backend, ratio)] = read_compile_ratios(storage, own, HERE).items()
    assert (backend, ratio) == ("inductor", pytest.approx(5.0))


def test_a_plan_of_a_plug_in_that_is_gone_tells_nothing(storage: Storage) -> None:
    """It may be in a study of any other model, and is no reason not to search."""
    plain_s = a_fast_model().predict_cold_s(INDUCTOR)
    study = keep_study(storage, "a", *(MIN_COMPILES * [2 * plain_s]), 9 * plain_s)
    with closing(sqlite3.connect(str(storage.place))) as connection, connection:
        gone = 'replace(record, \'"backend":"inductor"\', \'"backend":"gone"\')'
        connection.execute(f"UPDATE torchwise_trials SET record = {gone} WHERE number = {MIN_COMPILES}")
    assert read_compile_ratios(storage, study + 1, HERE) == {"inductor": pytest.approx(2.0)}


class Slow:
    """A launcher whose workers compile for so many seconds, up to their limit."""

    cold_s: Mapping[Plan, float] = {INDUCTOR: 10.0, ROLLED: 500.0}

    def __init__(self, clock: Any) -> None:
        self.limits: list[tuple[Plan, float]] = []
        self.clock = clock

    def run(self, job: Job, limits: Limits, _on_stage: object) -> str | Failure:
        if job.task != "try":
            return codec.to_json(an_inspection(1e-3, traits=frozenset({"module"})))
        self.limits.append((job.plan, limits.compile_s))
        self.clock.now += min(self.cold_s[job.plan], limits.compile_s)
        if self.cold_s[job.plan] > limits.compile_s:
            message = f"passed the compile time-out of {limits.compile_s:g} s{limits.compile_note}"
            return Failure(FailureKind.TIMED_OUT, WorkerStage.COMPILE, message)
        return codec.to_json(Attempt(Costs(self.cold_s[job.plan]), PASSED, Measurement((2e-3,) * 2, (1e-3,) * 2)))

    def list_limits(self) -> dict[Plan, float]:
        found, self.limits = dict(self.limits), []
        return found


def test_a_trial_that_outlasts_its_prediction_is_ended_and_tried_again_where_it_may_take_longer(
    storage: Storage, spent_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_loop.SearchLoop, "_choose_sampler", lambda _self: ListedSampler((INDUCTOR, ROLLED)))
    slow, asked = Slow(spent_clock), Request(WorkloadSpec("zoo:anything", calls=1000), effort="quick")
    study = run_study(asked, storage, slow, Listener())
    longest_s = 10 * compile_factor_of(ROLLED) / compile_factor_of(INDUCTOR)
    limit_s = max(MIN_S, PATIENCE * longest_s) + CALLS * 1e-3
    assert slow.list_limits() == {INDUCTOR: math.inf, ROLLED: pytest.approx(limit_s, abs=0.1)}
    cut = next(trial for trial in study.trials if trial.plan == ROLLED)
    assert cut.state is TrialState.FAIL
    assert "where earlier compiles let expect at most" in cut.reason
    assert "--compile-timeout SECONDS" in cut.reason
    run_study(asked, storage, slow, Listener())
    assert slow.list_limits() == {}, "the same request learns nothing from another try"
    run_study(replace(asked, compile_timeout_s=600.0), storage, slow, Listener())
    assert slow.list_limits() == {ROLLED: 600.0}, "the user's time-out takes its place"
