"""Measuring stops early: only a candidate that could lead, or tie, is measured to its end."""

from __future__ import annotations

from typing import Any

import pytest
from sketches import CAPTURE, FAILED, HERE, INDUCTOR, a_history, a_trial, an_inspection

from torchwise.plan import Plan
from torchwise.records import TrialState
from torchwise.study.decision import decide
from torchwise.study.pairwise import MARGIN, prune_below

FROZEN = Plan(backend="inductor", options=(("freezing", True),))


def test_with_nothing_leading_eager_is_to_be_beaten() -> None:
    assert prune_below(a_history()) == MARGIN
    assert prune_below(a_history(a_trial(INDUCTOR, 0.5))) == MARGIN
    assert prune_below(a_history(a_trial(INDUCTOR, 9.0, verdict=FAILED))) == MARGIN
    assert prune_below(a_history(a_trial(INDUCTOR, 2.0), calls=10)) == MARGIN  # faster, and does not pay


def test_the_bound_by_hand() -> None:
    # Eager costs 1,000 s and the leader 10 + 500 s: free of compiling, 1,000/510 times eager's speed costs as much.
    history = a_history(a_trial(INDUCTOR, 2.0, cold_s=10.0), calls=1000)
    assert prune_below(history) == pytest.approx(MARGIN * 1000 / 510)


def test_a_leader_that_compiled_nothing_is_to_be_beaten_at_its_speed() -> None:
    assert prune_below(a_history(a_trial(CAPTURE, 3.0, cold_s=0.0))) == pytest.approx(MARGIN * 3.0)


def test_the_bound_only_rises_as_more_is_known() -> None:
    trials = [a_trial(INDUCTOR, 1.2), a_trial(FROZEN, 2.0), a_trial(CAPTURE, 1.5, cold_s=0.0)]
    bounds = [prune_below(a_history(*trials[:count])) for count in range(4)]
    assert bounds == sorted(bounds)
    assert len(set(bounds)) == 3


@pytest.mark.parametrize("cold_s", [0.0, 5.0, 50.0])
@pytest.mark.parametrize("lead", [1.05, 1.5, 4.0])
def test_what_is_stopped_could_not_have_been_decided_for(cold_s: float, lead: float) -> None:
    leader = a_trial(INDUCTOR, lead, cold_s=cold_s)
    history = a_history(leader)
    here = decide(history, HERE).plan
    bound = prune_below(history)
    for compile_s in (0.0, 5.0):
        late = a_trial(FROZEN, bound * 0.999, cold_s=compile_s)
        assert decide(a_history(leader, late), HERE).plan == here


def test_what_was_stopped_does_not_raise_the_bound() -> None:
    assert prune_below(a_history(a_trial(INDUCTOR, 3.0, state=TrialState.PRUNED))) == MARGIN


def test_for_memory_a_light_plan_is_not_stopped_for_being_slower_than_a_fast_one() -> None:
    fast = a_trial(INDUCTOR, 3.0, cold_s=0.0, peak=300, eager_peak=100)
    light = a_trial(CAPTURE, 1.05, cold_s=0.0, peak=50, eager_peak=100)
    assert decide(a_history(fast, light, objective="memory"), HERE).plan == CAPTURE
    assert prune_below(a_history(fast, objective="memory")) < 1.05


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory"])
def test_where_eager_passes_the_memory_limit_a_slower_plan_is_not_stopped(objective: str) -> None:
    heavy = an_inspection(peak_memory=100)
    heavier = a_trial(INDUCTOR, 3.0, cold_s=0.0, peak=300, eager_peak=100)
    asked: dict[str, Any] = {"inspection": heavy, "objective": objective, "memory_limit": 60}
    assert prune_below(a_history(heavier, **asked)) == 0
    light = a_trial(CAPTURE, 0.8, cold_s=0.0, peak=50, eager_peak=100)
    assert decide(a_history(heavier, light, **asked), HERE).plan == CAPTURE


def test_what_keeps_the_memory_limit_is_to_be_beaten_where_time_counts() -> None:
    heavy = an_inspection(peak_memory=100)
    light = a_trial(CAPTURE, 0.8, cold_s=0.0, peak=50, eager_peak=100)
    assert prune_below(a_history(light, inspection=heavy, memory_limit=60)) == pytest.approx(MARGIN * 0.8)


def test_a_leader_that_is_unsure_of_itself_stops_only_what_it_surely_beats() -> None:
    """Trials are stopped by the plan that leads at the slow end of its interval, perhaps another than the leader."""
    noisy, sure = a_trial(FROZEN, 1.73, 7.28, cold_s=0.0), a_trial(INDUCTOR, 1.4, 1.5, cold_s=0.0)
    assert a_history(sure, noisy).incumbent() == FROZEN
    assert prune_below(a_history(noisy)) == pytest.approx(MARGIN * 1.73)
    assert prune_below(a_history(sure, noisy)) == pytest.approx(MARGIN * 1.73)
    surer = a_trial(CAPTURE, 2.0, 2.1, cold_s=0.0)
    assert prune_below(a_history(surer, noisy)) == pytest.approx(MARGIN * 2.0)
