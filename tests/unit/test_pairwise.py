"""Plans that trials cannot tell apart: when a duel between them is worth its time, and how it decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sketches import HERE, INDUCTOR, a_history, a_trial, make_measurement

from torchwise.plan import EAGER, Plan
from torchwise.records import Decision, Duel, Failure, FailureKind, Interval, Trial
from torchwise.records.trial import relative_speeds
from torchwise.study.decision import decide
from torchwise.study.pairwise import next_duel, next_repeat

FROZEN = INDUCTOR.with_choice("options", ("freezing", True))
WRAPPED = FROZEN.with_choice("options", ("cpp_wrapper", True))
MANY = 100_000
"""Calls of a second each: a hundredth of them is more than any duel takes."""


def add_duel(trial: Trial, rival: Trial | Plan, low: float, high: float | None = None) -> Trial:
    """Return the trial after a duel in which its plan had so many times the rival's speed."""
    return replace(trial, duel=Duel(rival if isinstance(rival, Plan) else rival.plan, make_measurement(low, high)))


def decide_trials(*trials: Trial, calls: int = MANY) -> Decision:
    return decide(a_history(*trials, calls=calls), HERE)


def plans_of(pair: tuple[Trial, Trial] | None) -> tuple[Plan, Plan] | None:
    return pair and (pair[0].plan, pair[1].plan)


# ---- which is timed against eager again


def test_the_chosen_plan_has_two_processes() -> None:
    again = (make_measurement(2.02),)
    leader, simpler = a_trial(FROZEN, 2.02, repeats=again), a_trial(INDUCTOR, 2.0, repeats=())
    found = next_repeat(a_history(leader, simpler, calls=MANY), 5, 0.02, 4)
    assert found is not None
    assert found.plan == INDUCTOR, "the simpler of a tie"
    simpler = replace(simpler, repeats=(make_measurement(2.0),))
    assert next_repeat(a_history(leader, simpler, calls=MANY), 5, 0.02, 4) is None
    limited = a_history(leader, replace(simpler, repeats=()), calls=MANY, latency_limit=1.5, objective="throughput")
    assert not limited.eager_fits
    found = next_repeat(limited, 5, 0.02, 4)
    assert found is not None
    assert found.plan == INDUCTOR, "also where eager is too slow"
    alone = replace(simpler, plan=Plan(threads=1), repeats=())
    assert next_repeat(a_history(leader, alone, calls=MANY), 5, 0.02, 4) is None, "nothing of it is compiled"


@pytest.mark.parametrize(("again", "plan"), [((1.6, 1.1), None), ((1.6, 0.9), FROZEN)])
def test_the_next_plan_has_its_turn_if_all_processes_of_the_first_do_not_tell(
    again: tuple[float, ...], plan: Plan | None
) -> None:
    first = a_trial(INDUCTOR, 1.3, repeats=tuple(map(make_measurement, again)))
    second = a_trial(FROZEN, 1.05, repeats=(make_measurement(1.04),))
    found = next_repeat(a_history(first, second, calls=MANY), 3, 0.02, 4)
    assert (found and found.plan) == plan


# ---- which is held


def test_trials_that_overlap_are_told_apart() -> None:
    trials = a_trial(INDUCTOR, 2.0, 2.4), a_trial(FROZEN, 2.01, 2.41)
    for order in (trials, trials[::-1]):
        assert plans_of(next_duel(a_history(*order, calls=MANY), 9)) == (FROZEN, INDUCTOR), "the simpler of a tie leads"


def test_whom_it_is_best_to_know_more_of_comes_first() -> None:
    trials = a_trial(INDUCTOR, 2.4, 2.5), a_trial(FROZEN, 2.1, 2.2), a_trial(WRAPPED, 2.3, 2.4)
    assert plans_of(next_duel(a_history(*trials, calls=MANY), 9)) == (WRAPPED, INDUCTOR)


def test_processes_differ_by_more_than_intervals_say() -> None:
    trials = a_trial(INDUCTOR, 2.50), a_trial(FROZEN, 2.45)
    assert next_duel(a_history(*trials, calls=MANY), 9) is not None, "2 % may be two processes' difference"
    assert next_duel(a_history(a_trial(INDUCTOR, 3.0), a_trial(FROZEN, 2.0), calls=MANY), 9) is None, "a third may not"


def test_processes_on_a_cpu_differ_more_than_those_on_a_gpu() -> None:
    trials = a_trial(INDUCTOR, 2.3), a_trial(FROZEN, 2.0)
    assert next_duel(a_history(*trials, calls=MANY), 9) is not None
    assert next_duel(a_history(*trials, calls=MANY, device="cuda"), 9) is None


def test_what_is_not_sure_of_either_plan_counts() -> None:
    for leader, other, held in (
        ((3.0, 3.0), (2.1, 2.1), False),
        ((3.0, 3.0), (1.6, 2.6), True),
        ((1.7, 4.3), (2.1, 2.1), True),
    ):
        history = a_history(a_trial(INDUCTOR, *leader), a_trial(FROZEN, *other), calls=MANY)
        assert (next_duel(history, 9) is not None) is held


def test_a_duel_that_costs_more_than_it_may_save_is_not_held() -> None:
    trials = a_trial(INDUCTOR, 2.0, 2.4), a_trial(FROZEN, 2.1, 2.5)
    assert next_duel(a_history(*trials, calls=200), 9) is None
    assert next_duel(a_history(*trials, calls=20_000), 9) is not None


def test_what_trials_took_beside_compiling_a_duel_takes_as_well() -> None:
    trials = a_trial(INDUCTOR, 2.0, 2.4, seconds=2_000.0), a_trial(FROZEN, 2.1, 2.5, seconds=2_000.0)
    assert next_duel(a_history(*trials, calls=20_000), 9) is None


def test_warm_caches_make_it_cheaper() -> None:
    trials = a_trial(INDUCTOR, 2.0, 2.4, cold_s=300.0, warm_s=1.0), a_trial(FROZEN, 2.1, 2.5, cold_s=300.0, warm_s=1.0)
    history = a_history(*trials, calls=20_000)
    assert next_duel(history, 9) is None
    assert next_duel(history, 9, cached={FROZEN}) is None, "one of the two compiles for minutes all the same"
    assert next_duel(history, 9, cached={INDUCTOR, FROZEN}) is not None


def test_a_warm_start_that_was_never_timed_is_predicted_for_what_is_compiled() -> None:
    costs = {"cold_s": 100.0, "warm_s": None}
    trials = a_trial(INDUCTOR, 2.0, 2.4, **costs), a_trial(FROZEN, 2.1, 2.5, **costs)
    history = a_history(*trials, calls=10_000)
    assert next_duel(history, 9) is None
    assert next_duel(history, 9, cached={INDUCTOR, FROZEN}) is not None
    one, other = (replace(trial, plan=Plan(threads=count)) for count, trial in enumerate(trials, 1))
    assert next_duel(a_history(one, other, calls=10_000), 9, cached={one.plan, other.plan}) is None


def test_it_takes_two_that_pay() -> None:
    leader = a_trial(INDUCTOR, 2.0, 2.4)
    assert next_duel(a_history(leader, calls=MANY), 9) is None
    assert next_duel(a_history(calls=MANY), 9) is None
    unproven = a_trial(FROZEN, 2.1, 2.5, verdict=None)
    assert next_duel(a_history(leader, unproven, calls=MANY), 9) is None
    slower = a_trial(INDUCTOR, 0.9, 1.1), a_trial(FROZEN, 0.9, 1.2)
    assert next_duel(a_history(*slower, calls=MANY), 9) is None, "eager was in their own processes"


def test_memory_needs_no_clock() -> None:
    trials = a_trial(INDUCTOR, 2.0, 2.4, peak=1, eager_peak=9), a_trial(FROZEN, 2.1, 2.5, peak=1, eager_peak=9)
    assert next_duel(a_history(*trials, calls=MANY, objective="memory"), 9) is None


def test_nobody_challenges_twice() -> None:
    leader, other, third = a_trial(INDUCTOR, 2.0, 2.4), a_trial(FROZEN, 2.1, 2.5), a_trial(WRAPPED, 2.0, 2.4)
    assert next_duel(a_history(leader, add_duel(other, leader, 0.97), calls=MANY), 9) is None
    failed = replace(other, duel=Duel(INDUCTOR, failure=Failure(FailureKind.OUT_OF_MEMORY, "compile", "both")))
    assert plans_of(next_duel(a_history(leader, failed, calls=MANY), 9)) == (INDUCTOR, FROZEN)
    dueled = replace(leader, duel=failed.duel)
    assert next_duel(a_history(dueled, failed, calls=MANY), 9) is None, "what failed is not begun again"
    history = a_history(leader, add_duel(other, leader, 1.1), third, calls=MANY)
    assert plans_of(next_duel(history, 9)) == (WRAPPED, FROZEN), "who won meets the next"


def test_duels_end_at_a_limit_failed_ones_counted() -> None:
    leader, other, third = a_trial(INDUCTOR, 2.0, 2.4), a_trial(FROZEN, 2.0, 2.4), a_trial(WRAPPED, 2.0, 2.4)
    failure = Failure(FailureKind.TIMED_OUT, "compile", "too long")
    for held in (add_duel(other, leader, 1.01), replace(other, duel=Duel(INDUCTOR, failure=failure))):
        history = a_history(leader, held, third, calls=MANY)
        assert next_duel(history, 1) is None
        assert next_duel(history, 2) is not None
    elsewhere = add_duel(other, Plan(threads=7), 1.01), add_duel(a_trial(Plan(threads=6), 2.0), Plan(threads=5), 1.0)
    assert next_duel(a_history(leader, *elsewhere, third, calls=MANY), 1) is not None, "those of other leaders"


# ---- the outcome


def test_a_duel_counts_for_more_than_trials() -> None:
    leader, other = a_trial(INDUCTOR, 2.2, 2.4), a_trial(FROZEN, 2.1, 2.3)
    assert decide_trials(leader, other).plan == INDUCTOR
    assert decide_trials(leader, add_duel(other, leader, 1.05)).plan == FROZEN
    assert decide_trials(leader, add_duel(other, leader, 0.95)).plan == INDUCTOR
    assert decide_trials(add_duel(leader, other, 0.95), other).plan == FROZEN, "whoever of them is called the rival"


def test_a_duel_that_ends_in_a_tie_goes_to_the_simpler() -> None:
    leader, other = a_trial(FROZEN, 2.5, 2.7), a_trial(INDUCTOR, 2.3, 2.6)
    assert decide_trials(leader, other).plan == FROZEN
    assert decide_trials(leader, add_duel(other, leader, 0.97, 1.01)).plan == INDUCTOR
    assert decide_trials(leader, add_duel(other, leader, 0.96, 0.99)).plan == FROZEN


def test_a_tie_goes_to_the_simpler_whichever_compiles_a_little_sooner() -> None:
    leader, other = a_trial(INDUCTOR, 2.3, 2.6, cold_s=10.1), a_trial(FROZEN, 2.3, 2.6, cold_s=10.0)
    assert decide_trials(leader, other).plan == INDUCTOR
    assert decide_trials(leader, add_duel(other, leader, 0.98, 1.02)).plan == INDUCTOR
    assert decide_trials(add_duel(leader, other, 0.98, 1.02), other).plan == INDUCTOR


def test_a_sure_duel_is_not_overruled_by_the_chain_that_it_is_in() -> None:
    """The second is as fast as the first, and clearly slower than the third. The third may be as fast as the first."""
    first, second = a_trial(INDUCTOR, 2.3, 2.6), a_trial(FROZEN, 2.3, 2.6)
    third = add_duel(a_trial(WRAPPED, 2.3, 2.6), FROZEN, 1.005, 1.025)
    assert decide_trials(first, add_duel(second, first, 0.98, 1.02), third).plan == INDUCTOR, (
        "the simplest of those within 2 %"
    )
    third = add_duel(third, FROZEN, 1.03, 1.05)
    assert decide_trials(first, add_duel(second, first, 0.98, 1.02), third).plan == WRAPPED


def test_a_duel_that_says_what_trials_said_changes_nothing() -> None:
    leader, other = a_trial(FROZEN, 2.53, 2.54), a_trial(INDUCTOR, 2.49, 2.50)
    assert (
        decide_trials(leader, other).plan == decide_trials(leader, add_duel(other, leader, 0.983, 0.985)).plan == FROZEN
    )


def test_a_duel_that_tells_nothing_apart_decides_for_nobody() -> None:
    leader, other = a_trial(INDUCTOR, 2.3), a_trial(FROZEN, 2.2)
    assert decide_trials(leader, add_duel(other, leader, 0.8, 1.3)).plan == INDUCTOR


def test_what_a_duel_found_counts_whoever_leads_by_then() -> None:
    first, second = a_trial(INDUCTOR, 2.0), a_trial(FROZEN, 1.96)
    third = a_trial(WRAPPED, 2.06)
    assert decide_trials(first, add_duel(second, first, 1.1), third).plan == FROZEN


def test_what_is_faster_still_has_to_pay() -> None:
    leader, other = (
        a_trial(INDUCTOR, 2.2, 2.4, cold_s=10.0),
        add_duel(a_trial(FROZEN, 2.1, 2.3, cold_s=900.0), INDUCTOR, 1.1),
    )
    assert decide_trials(leader, other, calls=2_000).plan == INDUCTOR
    assert decide_trials(leader, other, calls=200_000).plan == FROZEN


def test_duels_lead_from_one_to_the_next() -> None:
    first, second = a_trial(INDUCTOR, 2.2, 2.4), a_trial(FROZEN, 2.2, 2.3)
    third = a_trial(WRAPPED, 2.1, 2.3)
    chain = first, add_duel(second, first, 1.05), add_duel(third, second, 1.05)
    for order in (chain, chain[::-1]):
        assert decide_trials(*order).plan == WRAPPED


@pytest.mark.parametrize("calls", [10, MANY])
def test_a_duel_with_a_plan_that_is_not_asked_about_decides_nothing(calls: int) -> None:
    other = add_duel(a_trial(FROZEN, 2.1, 2.3), Plan(threads=7), 3.0)
    expected = EAGER if calls == 10 else FROZEN
    assert decide_trials(other, a_trial(INDUCTOR, 2.0, 2.05), calls=calls).plan == expected


# ---- the words for it


def test_the_reason_names_who_came_closest() -> None:
    leader = a_trial(INDUCTOR, 2.2, 2.4)
    others = add_duel(a_trial(FROZEN, 2.1, 2.3), leader, 0.8), add_duel(a_trial(WRAPPED, 2.1, 2.3), leader, 0.9)
    decision = decide_trials(leader, *others)
    assert decision.plan == INDUCTOR
    assert decision.reason.endswith(f"Timed beside {WRAPPED} in one process, it has 1.11 [1.11, 1.11] times its speed.")
    assert decision.speedup == leader.speedup, "its own trial's"


def test_without_duels_nothing_is_said_of_them() -> None:
    assert "beside" not in decide_trials(a_trial(INDUCTOR, 2.2, 2.4)).reason


def test_a_duel_that_failed_is_not_named() -> None:
    """Two plans whose duel failed still have a ratio, through a third."""
    second = a_trial(FROZEN, 2.3, 2.5, duel=Duel(INDUCTOR, failure=Failure(FailureKind.OUT_OF_MEMORY, "compile", "")))
    third = add_duel(a_trial(WRAPPED, 1.9, 2.1), second, 0.8)
    decision = decide_trials(add_duel(a_trial(INDUCTOR, 2.4, 2.6), third, 1.3), second, third)
    assert decision.plan == INDUCTOR
    assert f"Timed beside {WRAPPED} in one process, it has 1.3 " in decision.reason


def test_a_duel_reads_both_ways_and_on() -> None:
    leader, other = a_trial(INDUCTOR, 2.0), a_trial(FROZEN, 2.0)
    trials = leader, add_duel(other, leader, 0.8, 1.0)
    assert relative_speeds(trials, FROZEN) == {INDUCTOR: Interval(0.8, pytest.approx(0.9), 1.0)}
    back = relative_speeds(trials, INDUCTOR)[FROZEN]
    assert (back.low, back.high) == (1.0, 1.25)
    assert relative_speeds(trials, WRAPPED) == {}
    further = *trials, add_duel(a_trial(WRAPPED, 2.0), other, 0.5)
    assert relative_speeds(further, WRAPPED)[INDUCTOR] == Interval(0.4, pytest.approx(0.45), 0.5)
    assert relative_speeds((replace(leader, duel=Duel(FROZEN)),), INDUCTOR) == {}, "one that did not come to its end"


def test_compiling_does_not_differ_from_process_to_process() -> None:
    costly = a_trial(INDUCTOR, 2.0, cold_s=900.0), a_trial(FROZEN, 1.8, cold_s=910.0)
    assert next_duel(a_history(*costly, calls=2_000), 9, cached={INDUCTOR, FROZEN}) is None
