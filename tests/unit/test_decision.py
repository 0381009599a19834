"""Trials become one decision: the chosen plan, plans that are never chosen, and the sentence about the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sketches import (
    CAPTURE,
    FAILED,
    HERE,
    INDUCTOR,
    NOT_COMPARABLE,
    a_history,
    a_trial,
    an_inspection,
    make_measurement,
)

from torchwise.plan import EAGER, Plan
from torchwise.records import Check, Decision, Failure, FailureKind, Outcome, Trial, TrialState, Verdict
from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.format import seconds
from torchwise.study.decision import decide
from torchwise.study.history import PLAIN_COMPILE_S

AUTOTUNED = Plan(backend="inductor", mode="max-autotune-no-cudagraphs")
GIB = 2**30
TOO_LONG = f"Compiling would take about {seconds(PLAIN_COMPILE_S['cpu'])}"


def decide_trials(*trials: Trial, **asked: Any) -> Decision:
    return decide(a_history(*trials, **asked), HERE)


def shuffles(trials: list[Trial]) -> list[list[Trial]]:
    return [trials[i:] + trials[:i] for i in range(len(trials))] + [trials[::-1]]


# ---- compiling pays


def test_compiling_pays() -> None:
    # 1 s a call, 1,000 calls: 1,000 s for eager, 10 + 500 for the plan.
    decision = decide_trials(a_trial(INDUCTOR, 2.0, cold_s=10.0, warm_s=2.0))
    assert decision.plan == INDUCTOR
    assert decision.speedup is not None
    assert decision.break_even_calls is not None
    assert (decision.speedup.mid, decision.break_even_calls.mid) == (2.0, 20.0)
    assert (decision.saved_s, decision.baseline_s) == (490.0, 1.0)
    assert (decision.cold_s, decision.warm_s, decision.error) == (10.0, 2.0, 1e-7)
    assert decision.reason == (
        "Run inductor: 2 [2, 2] times eager's speed, verified, paid back after 20 of your 1,000 calls; "
        "it saves about 8 min 10 s."
    )


def test_the_decision_names_what_it_holds_for() -> None:
    inspection = an_inspection(1.0, inputs=("a", "b"))
    for trials in ([], [a_trial(INDUCTOR, 2.0)]):
        history = a_history(*trials, inspection=inspection, restarts=2)
        decision = decide(history, HERE)
        assert (decision.identity, decision.structure) == (inspection.identity, inspection.structure)
        assert (decision.inputs, decision.environment, decision.workload) == (("a", "b"), HERE, history.workload)


def test_what_compiles_nothing_has_nothing_to_pay_back() -> None:
    reason = decide_trials(a_trial(CAPTURE, 1.5, cold_s=0.0), device="cuda").reason
    assert "verified, with nothing to pay back; it saves about 5 min 33 s." in reason


def test_the_least_cost_is_chosen_not_the_highest_speed() -> None:
    trials = [a_trial(INDUCTOR, 2.0, cold_s=10.0), a_trial(AUTOTUNED, 4.0, cold_s=600.0)]
    for order in shuffles(trials):
        assert decide_trials(*order, calls=1000).plan == INDUCTOR
        assert decide_trials(*order, calls=100_000).plan == AUTOTUNED


def test_restarts_weigh_what_compiles_long_when_warm() -> None:
    quick = a_trial(INDUCTOR, 2.0, cold_s=10.0, warm_s=1.0)
    slow = a_trial(AUTOTUNED, 2.5, cold_s=20.0, warm_s=15.0)
    assert decide_trials(quick, slow, restarts=1).plan == AUTOTUNED
    assert decide_trials(quick, slow, restarts=20).plan == INDUCTOR


# ---- eager


def test_too_few_calls_stay_with_eager_and_say_when_it_would_pay() -> None:
    decision = decide_trials(a_trial(INDUCTOR, 2.0, cold_s=10.0), calls=10)
    assert decision.plan == EAGER
    assert (decision.speedup, decision.break_even_calls, decision.saved_s, decision.cold_s) == (None, None, 0.0, 0.0)
    assert decision.reason == (
        "Stay with eager: inductor runs at 2 [2, 2] times its speed, but compiles for 10.0 s and "
        "pays back after 20 calls, at worst after 20, and 10 are expected."
    )


def test_eager_wins() -> None:
    decision = decide_trials(a_trial(INDUCTOR, 0.7), a_trial(AUTOTUNED, 0.9, 0.95), calls=10**9)
    assert decision.plan == EAGER
    assert decision.reason == (
        "Stay with eager: no verified plan was surely faster; the best, inductor max-autotune-no-cudagraphs, "
        "reached 0.925 [0.9, 0.95] times its speed."
    )


@pytest.mark.parametrize("ends", [(0.99, 1.6), (0.807, 28.4), (0.00245, 2.66)])
def test_an_interval_that_holds_one_is_inconclusive(ends: tuple[float, float]) -> None:
    decision = decide_trials(a_trial(INDUCTOR, *ends, cold_s=0.0), calls=10**9)
    assert decision.plan == EAGER
    assert decision.answer is Answer.INCONCLUSIVE
    assert decision.reason.startswith("Inconclusive: inductor may be faster than eager (")
    assert "quieter" in decision.reason


def test_what_is_told_is_yes_or_no() -> None:
    assert decide_trials(a_trial(INDUCTOR, 1.5, cold_s=0.0), calls=10**9).answer is Answer.YES
    assert decide_trials(a_trial(INDUCTOR, 0.7), calls=10**9).answer is Answer.NO
    assert decide_trials(a_trial(INDUCTOR, 0.99, 1.01, cold_s=0.0), calls=10**9).answer is Answer.NO, (
        "no faster, and told"
    )
    assert decide_trials(a_trial(INDUCTOR, 0.9, 1.5), calls=10).answer is Answer.NO, "whichever it is, it never pays"
    beside_a_winner = a_trial(CAPTURE, 0.9, 1.5, cold_s=0.0), a_trial(INDUCTOR, 2.0, cold_s=0.0)
    assert decide_trials(*beside_a_winner, calls=10**9).answer is Answer.YES


def test_a_plan_that_is_faster_by_an_unknown_factor_is_told_by_the_least() -> None:
    decision = decide_trials(a_trial(INDUCTOR, 40.0, 100.0, cold_s=0.0), calls=1000)
    assert decision.plan == INDUCTOR
    assert decision.reason == (
        "Run inductor: 40 to 100 times eager's speed, verified, with nothing to pay back; it saves at "
        "least 16 min 15 s."
    )
    assert decision.saved_s == pytest.approx(1000 * (1 - 1 / 40))


def test_nothing_was_worth_trying() -> None:
    decision = decide_trials(calls=3)
    assert decision.plan == EAGER
    assert decision.reason == (
        f"Stay with eager: nothing is worth a trial. {TOO_LONG}, and 3 calls take 3.00 s altogether."
    )
    assert decide_trials(calls=1).reason.endswith("and one call takes 1.00 s altogether.")
    assert decide_trials(calls=25).reason.endswith(f"{TOO_LONG}, and 25 calls take 25.0 s altogether."), "close to it"
    assert decide_trials(calls=1000).reason == "Stay with eager: nothing is worth a trial."


def test_only_what_compiles_nothing_was_tried() -> None:
    assert decide_trials(a_trial(CAPTURE, 0.8), calls=3).reason == (
        f"Stay with eager: no candidate was both right and faster. {TOO_LONG}, and 3 calls take 3.00 s altogether."
    )


def test_everything_failed() -> None:
    died = Trial(0, INDUCTOR, TrialState.FAIL, failure=Failure(FailureKind.DIED, "compile", "SIGSEGV"))
    assert decide_trials(died, a_trial(AUTOTUNED, 5.0, verdict=FAILED)).reason == (
        "Stay with eager: no candidate was both right and faster."
    )


def test_where_every_candidate_broke_the_first_error_is_named_and_nothing_is_said_of_speed() -> None:
    broke = Trial(0, INDUCTOR, TrialState.FAIL, failure=Failure(FailureKind.RAISED, "verify", "no checks\n\nmore"))
    told = decide_trials(broke, replace(broke, number=1, plan=AUTOTUNED)).reason
    assert told.startswith("Stay with eager: inductor failed, and so did 1 other, so nothing is known of their speed: ")
    assert "no checks" in told
    assert "more" not in told
    assert "both right and faster" in decide_trials(broke, a_trial(AUTOTUNED, 5.0, verdict=FAILED)).reason


def test_a_search_whose_time_ended_before_any_plan_was_tried_is_inconclusive() -> None:
    cut = Failure(FailureKind.OUT_OF_BUDGET, "compile", "the budget of 30 s is spent")
    trials = [Trial(0, INDUCTOR, TrialState.FAIL, failure=cut)]
    for tried in ([], trials):
        decision = decide(replace(a_history(*tried), left_s=-0.1), HERE)
        assert decision.is_inconclusive
        assert "ended before a plan was tried to its end" in decision.reason
    assert decide(replace(a_history(*trials), left_s=5.0), HERE).is_inconclusive, "the time of a trial ended"
    for tried, left_s in (([], 5.0), ([*trials, a_trial(AUTOTUNED, 0.8)], -0.1)):
        assert not decide(replace(a_history(*tried), left_s=left_s), HERE).is_inconclusive


def test_a_plan_that_ran_out_of_time_beside_others_is_named_with_the_way_out() -> None:
    cut = Trial(0, INDUCTOR, TrialState.FAIL, failure=Failure(FailureKind.TIMED_OUT, "compile", "600 s"))
    told = " inductor was not tried to the end, for lack of time: run this again with a larger budget or effort,"
    assert told in decide_trials(cut, a_trial(AUTOTUNED, 0.8), calls=10**9).reason
    assert "for lack of time" not in decide_trials(a_trial(AUTOTUNED, 0.8), calls=10**9).reason


BREAK = "Data-dependent branching, at model.py:7, in forward: `if x.sum() > 0:`"


@pytest.mark.parametrize("span", [(0.8, 0.9), (0.5, 2.0)], ids=["slower", "inconclusive"])
def test_staying_with_eager_names_the_first_graph_break(span: tuple[float, float]) -> None:
    told = f" The graph breaks: {BREAK}. torchwise explain lists every break with its fix."
    assert told in decide_trials(a_trial(INDUCTOR, *span, graph_break=BREAK)).reason
    assert told not in decide_trials(a_trial(INDUCTOR, *span)).reason
    assert told not in decide_trials(replace(a_trial(INDUCTOR, 2.0), graph_break=BREAK)).reason


def test_a_break_after_which_nothing_is_left_to_compile_is_named_too() -> None:
    failure = Failure(FailureKind.UNSUPPORTED, "compile", f"nothing was compiled: {BREAK}")
    failed = Trial(0, INDUCTOR, TrialState.FAIL, failure=failure)
    assert decide_trials(failed).reason == (
        "Stay with eager: no candidate was both right and faster. "
        f"The graph breaks: {BREAK}. torchwise explain lists every break with its fix."
    )


def test_no_answer_could_be_compared() -> None:
    unclear = (a_trial(INDUCTOR, 5.0, verdict=NOT_COMPARABLE), a_trial(AUTOTUNED, 5.0, verdict=NOT_COMPARABLE))
    assert decide_trials(*unclear).reason == (
        "Stay with eager: no candidate's answer could be compared with eager's, so none is verified "
        "(values: eager disagrees with itself)."
    )
    assert "could be compared" not in decide_trials(*unclear, a_trial(AUTOTUNED, 5.0, verdict=FAILED)).reason


# ---- never chosen

UNPROVEN = {
    "failed": {"verdict": FAILED},
    "not comparable": {"verdict": NOT_COMPARABLE},
    "not verified": {"verdict": None},
    "nothing checked": {"verdict": Verdict(())},
    "pruned": {"state": TrialState.PRUNED},
    "running": {"state": TrialState.RUNNING},
    "failed when warm": {"state": TrialState.FAIL, "failure": Failure(FailureKind.RAISED, "warm compile", "KeyError")},
    "not timed": {"measurement": None},
    "no costs": {"costs": None},
    "not a number": {"measurement": make_measurement(math.nan)},
}


@pytest.mark.parametrize("why", UNPROVEN)
@pytest.mark.parametrize("objective", ["latency", "throughput", "memory"])
def test_what_is_not_proven_is_never_chosen(why: str, objective: str) -> None:
    proven = a_trial(INDUCTOR, 1.2, cold_s=1.0, peak=GIB, eager_peak=2 * GIB)
    tempting = a_trial(AUTOTUNED, 50.0, cold_s=0.0, peak=1, eager_peak=2 * GIB)
    assert decide_trials(proven, tempting, objective=objective).plan == AUTOTUNED
    unproven = replace(tempting, **UNPROVEN[why])  # type: ignore[arg-type]
    assert decide_trials(proven, unproven, objective=objective).plan == INDUCTOR
    assert decide_trials(unproven, objective=objective).plan == EAGER


# ---- ties


def test_ties_go_to_the_simpler_plan() -> None:
    simple = a_trial(INDUCTOR, 1.98, 2.02, cold_s=1.0)
    complex_ = a_trial(Plan(backend="inductor", options=(("freezing", True),)), 1.99, 2.03, cold_s=1.0)
    for order in shuffles([simple, complex_]):
        assert decide_trials(*order).plan == INDUCTOR


def test_a_clear_lead_is_no_tie() -> None:
    simple = a_trial(INDUCTOR, 1.98, 2.02, cold_s=1.0)
    frozen = Plan(backend="inductor", options=(("freezing", True),))
    # Apart by more than 2 %, though the intervals overlap. Then close, but with intervals apart.
    assert decide_trials(simple, a_trial(frozen, 2.0, 2.2, cold_s=1.0)).plan == frozen
    assert (
        decide_trials(replace(simple, measurement=make_measurement(2.0)), a_trial(frozen, 2.03, cold_s=1.0)).plan
        == frozen
    )


def test_the_order_of_the_trials_decides_nothing() -> None:
    plans = [INDUCTOR, CAPTURE, Plan(memory_format="channels_last"), Plan(backend="inductor", capture="call")]
    trials = [a_trial(plan, 2.0 + i / 100, 2.2, cold_s=float(i)) for i, plan in enumerate(plans)]
    assert len({decide_trials(*order, device="cuda").plan for order in shuffles(trials)}) == 1


def test_a_plan_tied_with_eager_is_eager() -> None:
    assert decide_trials(a_trial(CAPTURE, 1.0, 1.01, cold_s=0.0)).plan == EAGER


# ---- memory


def lighter(plan: Plan, share: float, speed: float = 1.0, **rest: Any) -> Trial:
    return a_trial(plan, speed, cold_s=0.0, peak=int(share * GIB), eager_peak=GIB, **rest)


def test_for_memory_the_lightest_is_chosen_that_is_not_slower() -> None:
    fast, light, crawling = lighter(INDUCTOR, 0.9, 3.0), lighter(CAPTURE, 0.5), lighter(AUTOTUNED, 0.1, 0.5)
    for order in shuffles([fast, light, crawling]):
        decision = decide_trials(*order, objective="memory")
        assert decision.plan == CAPTURE
        assert decision.reason == (
            "Run eager + capture call: 1 [1, 1] times eager's speed, with 512 MiB at its peak against eager's 1024 MiB."
        )


def test_for_memory_a_little_lighter_is_not_lighter() -> None:
    assert decide_trials(lighter(CAPTURE, 0.96), objective="memory").plan == EAGER
    assert decide_trials(lighter(CAPTURE, 0.94), objective="memory").plan == CAPTURE


def test_for_memory_compiling_must_not_cost_more_than_it_saves() -> None:
    light = a_trial(INDUCTOR, 1.0, cold_s=30.0, peak=1, eager_peak=GIB)
    assert decide_trials(light, objective="memory", calls=1000).plan == EAGER
    assert decide_trials(light, objective="memory", calls=2000).plan == INDUCTOR


def test_for_memory_a_peak_that_is_unknown_is_not_lighter() -> None:
    for peaks in ((None, GIB), (1, None), (1, 0)):
        trial = a_trial(INDUCTOR, 3.0, peak=peaks[0], eager_peak=peaks[1])
        assert decide_trials(trial, objective="memory").plan == EAGER


def test_for_speed_memory_does_not_count() -> None:
    assert decide_trials(lighter(INDUCTOR, 5.0, 2.0), lighter(CAPTURE, 0.1, 1.5)).plan == INDUCTOR


# ---- the sentence


def test_the_sentence_for_eager_speaks_of_memory_where_that_was_asked() -> None:
    trials = [lighter(INDUCTOR, 1.5, 2.0), lighter(CAPTURE, 0.5, verdict=FAILED)]
    assert decide_trials(*trials, objective="memory", calls=10**6).reason == (
        "Stay with eager: of 1 verified plans none needs surely less memory and is not slower."
    )


def test_the_sentence_for_eager_does_not_contradict_itself() -> None:
    # Pays after 2,000 calls in the middle of its interval, well below the expected number. But it may never pay.
    decision = decide_trials(a_trial(INDUCTOR, 1.000001, 1.01, cold_s=10.0), calls=100_000)
    assert decision.plan == EAGER
    assert decision.reason.endswith("pays back after 2,015 calls, at worst after 10,000,000, and 100,000 are expected.")


@pytest.mark.parametrize(("looked_at_s", "baseline_s"), [(1.2, 1.2), (1.0, 1.0), (0.5, 0.5), (40.0, 1.0)])
def test_eager_that_was_held_up_when_it_was_looked_at_is_not_what_a_plan_saves_from(
    looked_at_s: float, baseline_s: float
) -> None:
    """Eager took one second beside the plan."""
    history = a_history(a_trial(INDUCTOR, 2.0, cold_s=10.0), inspection=an_inspection(looked_at_s))
    assert decide(history, HERE).baseline_s == baseline_s


def test_the_sentence_for_a_tie_says_that_it_is_one() -> None:
    # A compiled plan that is a little faster still, and never pays: eager was not preferred to this one.
    quick, slow = a_trial(CAPTURE, 1.012, 1.02, cold_s=0.0), a_trial(INDUCTOR, 1.0001, 1.04, cold_s=10.0)
    for trials in ((quick, slow), (slow, quick)):
        decision = decide_trials(*trials, calls=1000)
        assert decision.plan == EAGER
        assert decision.reason.startswith(
            f"Stay with eager: {CAPTURE} runs at 1.02 [1.01, 1.02] times its speed, and saves "
        )
        assert decision.reason.endswith("over 1,000 calls: less than the 2% from which a plan is worth having.")
    much = a_trial(INDUCTOR, 3.0, cold_s=10_000.0)
    reason = decide_trials(quick, much, calls=1000).reason
    assert "from which a plan is worth having; inductor runs at 3 [3, 3] times its speed" in reason


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(precision="bf16"), "It is lower-precision: its answers are 3.1e-03 off float64"),
        (
            Plan(backend="inductor", options=(("max_fusion_size", 32),)),
            "It is substituted: its answers are 3.1e-03 off",
        ),
        (INDUCTOR, None),
    ],
)
def test_the_sentence_says_what_accuracy_is_lost(plan: Plan, said: str | None) -> None:
    verdict = Verdict((Check("values", Outcome.PASS, "agrees", error=3.1e-3, floor=3e-3),))
    reason = decide_trials(a_trial(plan, 2.0, verdict=verdict)).reason
    assert (said in reason) if said else ("off float64" not in reason)


def test_a_plan_that_the_user_named_can_be_decided_for_though_no_choice_describes_it() -> None:
    own = Plan(backend="inductor", options=(("max_fusion_size", 32),))
    assert decide_trials(a_trial(own, 2.0)).plan == own


@pytest.mark.parametrize(
    ("baseline_s", "saved"),
    [
        (1e-6, "500 ms"),
        (1e-5, "5.00 s"),
        (1e-4, "50.0 s"),
        (1e-3, "8 min 20 s"),
        (1e-2, "1 h 23 min"),
        (1e-1, "13 h 53 min"),
        (1.0, "5.79 days"),
    ],
)
def test_what_is_saved_reads_as_on_the_page_of_the_study(baseline_s: float, saved: str) -> None:
    trial = a_trial(CAPTURE, 2.0, cold_s=0.0)
    assert decide_trials(trial, baseline_s=baseline_s, calls=1_000_000).reason.endswith(f"it saves about {saved}.")
    assert show.seconds(baseline_s * 500_000) == saved


def test_deciding_twice_decides_the_same() -> None:
    trials = [a_trial(INDUCTOR, 1.9, 2.1), a_trial(AUTOTUNED, 2.0, 2.2)]
    assert decide_trials(*trials) == decide_trials(*trials)
    assert Decision.from_json(decide_trials(*trials).to_json()) == decide_trials(*trials)


# ---- a limit of memory


def light(plan: Plan, low: float, peak: int | None) -> Trial:
    return a_trial(plan, low, peak=peak, eager_peak=4 * GIB)


RECOMPUTED = Plan(backend="inductor", activation_checkpointing="blocks")


def test_a_plan_over_the_memory_limit_is_not_decided_for() -> None:
    heavy, slower = light(AUTOTUNED, 4.0, 3 * GIB), light(INDUCTOR, 2.0, 2 * GIB)
    inspection = an_inspection(1.0, peak_memory=GIB)
    for limit, chosen in ((None, AUTOTUNED), (2 * GIB, INDUCTOR), (GIB, EAGER)):
        decision = decide(a_history(heavy, slower, inspection=inspection, memory_limit=limit), HERE)
        assert decision.plan == chosen


def test_one_whose_peak_is_not_known_keeps_no_limit() -> None:
    trial = light(INDUCTOR, 2.0, None)
    assert decide_trials(trial).plan == INDUCTOR
    assert decide_trials(trial, memory_limit=GIB).plan == EAGER


def test_where_eager_passes_the_limit_a_slower_plan_that_fits_is_decided_for() -> None:
    inspection = an_inspection(1.0, peak_memory=4 * GIB)
    slower = light(RECOMPUTED, 0.8, GIB)
    decision = decide(a_history(slower, inspection=inspection, memory_limit=2 * GIB), HERE)
    assert decision.plan == RECOMPUTED
    assert "it keeps the memory limit, which eager passes" in decision.reason
    assert decision.is_needed
    fits = decide(a_history(light(INDUCTOR, 2.0, GIB), inspection=inspection, memory_limit=8 * GIB), HERE)
    assert (fits.plan, fits.is_needed) == (INDUCTOR, False)


def test_where_nothing_fits_that_is_said() -> None:
    inspection = an_inspection(1.0, peak_memory=4 * GIB)
    decision = decide(a_history(light(INDUCTOR, 2.0, 3 * GIB), inspection=inspection, memory_limit=2 * GIB), HERE)
    assert decision.plan == EAGER
    assert decision.reason == (
        "Stay with eager, which takes 4096 MiB a call and passes the limit of 2048 MiB: "
        "no verified plan keeps it either."
    )


@pytest.mark.parametrize("peak", [50, 97], ids=["much lighter", "a little lighter"])
def test_where_eager_passes_the_limit_the_lightest_is_chosen_among_all_that_keep_it(peak: int) -> None:
    slow = a_trial(CAPTURE, 0.8, cold_s=0.0, peak=peak, eager_peak=100)
    heavy = an_inspection(peak_memory=100)
    decision = decide(a_history(slow, inspection=heavy, objective="memory", memory_limit=98), HERE)
    assert decision.plan == CAPTURE
