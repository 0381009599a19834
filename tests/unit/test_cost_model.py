"""The cost of a plan over its life, against figures worked out by hand."""

from __future__ import annotations

import pytest
from sketches import CAPTURE, INDUCTOR, a_history, a_trial, an_inspection, make_measurement

from torchwise.plan import EAGER, Plan
from torchwise.plan.choice import load_choices
from torchwise.plan.trait import Trait
from torchwise.records import CostModel, Interval, TrialState
from torchwise.study.history import BESIDE_S, BETWEEN_S, PLAIN_COMPILE_S, WARM_SHARE

AUTOTUNED = Plan(backend="inductor", mode="max-autotune-no-cudagraphs")
FACTOR = load_choices()["mode", AUTOTUNED.mode].compile_factor


def approx(interval: Interval | None) -> tuple[object, ...]:
    assert interval is not None
    return tuple(pytest.approx(value) for value in (interval.low, interval.mid, interval.high))


def test_what_eager_costs_is_its_calls() -> None:
    assert CostModel(baseline_s=0.25, calls=1000).baseline_cost == 250.0


@pytest.mark.parametrize(
    ("restarts", "warm_s", "expected"),
    [
        (1, 1.5, 10.0),  # the only start compiles cold
        (4, 1.5, 10.0 + 3 * 1.5),
        (4, 0.0, 10.0),
        (4, None, 40.0),  # never measured: every start is taken to compile cold
        (1, None, 10.0),
    ],
)
def test_every_restart_pays_the_warm_compile(restarts: int, warm_s: float | None, expected: float) -> None:
    assert CostModel(1.0, 10, restarts).overhead(a_trial(INDUCTOR, cold_s=10.0, warm_s=warm_s)) == expected


def test_cost_by_hand() -> None:
    # 2 s a call for eager, a speed-up of 1.6 to 2.5: 2/2.5 to 2/1.6 s a call. 100 calls, 10 + 2 * 1 s of compiling.
    economics = CostModel(baseline_s=2.0, calls=100, restarts=3)
    trial = a_trial(INDUCTOR, 1.6, 2.5, cold_s=10.0, warm_s=1.0)
    each = economics.seconds_per_call(trial)
    assert (each.low, each.mid, each.high) == approx(Interval(0.8, 1.0, 1.25))
    cost = economics.cost(trial)
    assert (cost.low, cost.mid, cost.high) == approx(Interval(92.0, 112.0, 137.0))
    assert economics.surely_pays(trial)


def test_break_even_by_hand() -> None:
    # 12 s of compiling. Each call saves 0.75 s at the slow end, 1 s in the middle, 1.2 s at the fast end.
    economics = CostModel(baseline_s=2.0, calls=100, restarts=3)
    found = economics.break_even_calls(a_trial(INDUCTOR, 1.6, 2.5, cold_s=10.0, warm_s=1.0))
    assert found is not None
    assert (found.low, found.mid, found.high) == approx(Interval(10.0, 12.0, 16.0))
    assert found.low < found.mid < found.high


def test_at_the_break_even_the_costs_are_equal() -> None:
    trial = a_trial(INDUCTOR, 1.3, cold_s=7.0)
    found = CostModel(0.5, 1).break_even_calls(trial)
    assert found is not None
    calls = found.mid
    assert 7.0 + calls * 0.5 / 1.3 == pytest.approx(calls * 0.5)
    assert not CostModel(0.5, int(calls)).surely_pays(trial)
    assert CostModel(0.5, int(calls) + 1).surely_pays(trial)


def test_what_may_be_slower_may_never_pay() -> None:
    economics = CostModel(1.0, 10**9)
    for low in (0.9, 1.0):
        trial = a_trial(INDUCTOR, low, 1.5)
        assert economics.break_even_calls(trial) is None
        assert not economics.surely_pays(trial)


def test_what_compiles_nothing_pays_from_the_first_call() -> None:
    trial = a_trial(CAPTURE, 1.5, cold_s=0.0)
    economics = CostModel(1.0, 1)
    assert economics.break_even_calls(trial) == Interval(0.0, 0.0, 0.0)
    assert economics.surely_pays(trial)


def test_no_gain_and_no_cost_is_no_reason_to_change() -> None:
    assert not CostModel(1.0, 100).surely_pays(a_trial(CAPTURE, 1.0, cold_s=0.0))


def test_restarts_can_undo_a_gain() -> None:
    trial = a_trial(INDUCTOR, 2.0, cold_s=10.0, warm_s=5.0)
    assert CostModel(1.0, 100, 1).surely_pays(trial)  # 10 + 50 against 100
    assert CostModel(1.0, 100, 8).surely_pays(trial)  # 45 + 50
    assert not CostModel(1.0, 100, 9).surely_pays(trial)  # 50 + 50


# ---- the figures that the history derives from it


def test_the_history_takes_calls_restarts_and_baseline_from_the_study() -> None:
    assert a_history(baseline_s=0.5, calls=30, restarts=4).economics == CostModel(0.5, 30, 4)


def test_a_plan_is_put_on_the_scale_of_the_studys_baseline() -> None:
    history = a_history(a_trial(INDUCTOR, 4.0), baseline_s=0.5)
    assert history.seconds_of(INDUCTOR) == 0.125
    assert history.seconds_of(EAGER) == 0.5
    assert history.seconds_of(Plan(threads=3)) == 0.5  # never timed


def test_the_incumbent_is_what_costs_least_and_surely_pays() -> None:
    slow_to_compile = a_trial(Plan(backend="inductor", mode="max-autotune-no-cudagraphs"), 4.0, cold_s=600.0)
    quick = a_trial(INDUCTOR, 2.0, cold_s=10.0)
    assert a_history(slow_to_compile, quick, calls=1000).incumbent() == INDUCTOR  # 850 against 510 s
    assert a_history(slow_to_compile, quick, calls=10_000).incumbent() == slow_to_compile.plan
    assert a_history(slow_to_compile, quick, calls=10).incumbent() == EAGER
    assert a_history().incumbent() == EAGER


def test_only_what_is_proven_can_lead() -> None:
    pruned = a_trial(INDUCTOR, 5.0, state=TrialState.PRUNED)
    assert a_history(pruned).incumbent() == EAGER


def test_the_quickest_compiled_plan_may_be_slower_than_eager() -> None:
    slow, slower = a_trial(INDUCTOR, 0.8), a_trial(Plan(backend="inductor", scope="regional"), 0.5)
    assert a_history(slower, slow, a_trial(CAPTURE, 3.0)).fastest_compiled() == INDUCTOR
    assert a_history(a_trial(CAPTURE, 3.0)).fastest_compiled() is None


def test_compile_time_is_assumed_until_it_was_seen() -> None:
    assert a_history().predict_overhead_s(INDUCTOR) == PLAIN_COMPILE_S["cpu"]
    assert a_history(device="cuda").predict_overhead_s(AUTOTUNED) == FACTOR * PLAIN_COMPILE_S["cuda"]
    assert a_history(restarts=3).predict_overhead_s(INDUCTOR) == PLAIN_COMPILE_S["cpu"] * (1 + 2 * WARM_SHARE)
    assert a_history().predict_overhead_s(CAPTURE) == 0


def test_the_operators_of_an_rnn_take_time_to_compile_only_if_it_is_compiled() -> None:
    inspection = an_inspection(1.0, operators=1000, traits=frozenset({Trait.RNN}))
    history = a_history(inspection=inspection)
    assert history.predict_cold_s(Plan(backend="inductor", transforms=("isolate_rnn",))) < 1.01 * PLAIN_COMPILE_S["cpu"]
    compiled = Plan(backend="inductor", transforms=("compiled_rnn",))
    assert history.predict_cold_s(compiled) > 1.5 * PLAIN_COMPILE_S["cpu"]
    isolated = a_trial(Plan(backend="inductor", transforms=("isolate_rnn",)), cold_s=3.0)
    assert a_history(isolated, inspection=inspection).predict_cold_s(compiled) == history.predict_cold_s(compiled)
    assert a_history(a_trial(compiled, cold_s=3.0), inspection=inspection).predict_cold_s(compiled) == pytest.approx(
        3.0
    )


def test_compile_time_is_scaled_from_what_was_seen() -> None:
    assert a_history(a_trial(INDUCTOR, cold_s=3.0)).predict_overhead_s(AUTOTUNED) == pytest.approx(FACTOR * 3.0)
    assert a_history(a_trial(AUTOTUNED, cold_s=20.0)).predict_overhead_s(INDUCTOR) == pytest.approx(20.0 / FACTOR)
    captured = a_trial(CAPTURE, cold_s=0.01)  # which compiles nothing, and tells of no compile
    assert a_history(captured).predict_overhead_s(INDUCTOR) == PLAIN_COMPILE_S["cpu"]


def test_the_cost_of_a_plan_is_what_was_seen_or_else_predicted() -> None:
    history = a_history(a_trial(INDUCTOR, 2.0, cold_s=10.0, warm_s=1.0), calls=100, restarts=3)
    assert (history.overhead_of(EAGER), history.cost_of(EAGER)) == (0.0, 100.0)
    assert (history.overhead_of(INDUCTOR), history.cost_of(INDUCTOR)) == (12.0, 62.0)
    assert history.overhead_of(AUTOTUNED) == history.predict_overhead_s(AUTOTUNED)
    assert history.cost_of(AUTOTUNED) == history.predict_overhead_s(AUTOTUNED) + 100.0  # as quick as eager, until seen


def test_a_trial_takes_one_cold_compile_and_what_trials_take_beside() -> None:
    assert a_history(restarts=9).predict_trial_s(INDUCTOR) == PLAIN_COMPILE_S["cpu"] + BESIDE_S
    assert a_history().predict_trial_s(CAPTURE) == BESIDE_S
    slow, quick = a_trial(INDUCTOR, cold_s=10.0, seconds=17.0), a_trial(CAPTURE, cold_s=1.0, seconds=6.0)
    assert a_history(slow, quick).predict_trial_s(AUTOTUNED) == pytest.approx(FACTOR * 10.0 + 5.0)
    running = a_trial(INDUCTOR, state=TrialState.RUNNING, costs=None, seconds=0.0)
    assert a_history(running).predict_trial_s(CAPTURE) == BESIDE_S


def test_the_gaps_between_kernels() -> None:
    # The plan takes half a second a call, and its kernels run for 0.2 s of it.
    profiled = a_trial(INDUCTOR, measurement=make_measurement(2.0, busy_s=0.2))
    history = a_history(profiled, inspection=an_inspection(1.0, shares={"launch": 0.4}), device="cuda")
    assert history.launch_gap_s(INDUCTOR) == pytest.approx(0.3)
    assert history.launch_gap_s(EAGER) == pytest.approx(0.4)
    assert a_history(a_trial(INDUCTOR, 2.0), device="cuda").launch_gap_s(INDUCTOR) == 0.0  # never profiled
    assert a_history(device="cuda").launch_gap_s(EAGER) == 0.0


@pytest.mark.parametrize(
    ("operators", "gap_s"), [(1000, 1000 * BETWEEN_S), (0, 0.0), (10**6, 0.5), (None, 0.5)], ids=str
)
def test_a_cpu_computes_nothing_between_operators_for_so_long_at_the_most(operators: int | None, gap_s: float) -> None:
    history = a_history(a_trial(INDUCTOR, 2.0), inspection=an_inspection(1.0, operators=operators), device="cpu")
    assert history.launch_gap_s(INDUCTOR) == pytest.approx(gap_s)
