"""The rows every view shows, and the sentence for each way of winning and losing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    UNCLEAR,
    WRONG,
    a_decision,
    a_failure,
    a_measurement,
    a_plan,
    a_study,
    a_trial,
    an_inspection,
)
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Duel,
    FailureKind,
    Outcome,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
)
from torchwise.records import format as show
from torchwise.records.answer import QUIET_HALF_WIDTH, Reliability
from torchwise.records.candidates import Row, rows
from torchwise.records.reasons import Cost, baseline_cost, cost_of, workload_of
from torchwise.records.study_diff import times_of
from torchwise.records.trial import CostModel
from torchwise.report.plots.study import series_of
from torchwise.report.study import inspection_facts, notes
from torchwise.study.decision import decide
from torchwise.study.history import History

CHEAP = Costs(1.0, 0.5)


def why(trial: Trial, *others: Trial, **study: Any) -> str:
    """Return the sentence for one trial of a study that is decided for eager unless said otherwise."""
    return row_of(a_study((trial, *others), **{"decided": -1, **study}), trial.number).why


def row_of(study: Study, number: int | None) -> Row:
    return next(row for row in rows(study) if row.number == number)


def test_the_decided_plan_comes_first_then_eager_then_the_proven_by_speed_then_the_others_in_order() -> None:
    assert [row.number for row in rows(a_study())] == [3, None, 4, 0, 2, 1, 5, 6, 7, 8, 9]
    assert [row.standing for row in rows(a_study())][:3] == ["decided", "baseline", "verified"]


def test_eager_comes_first_where_it_is_decided_for() -> None:
    first, *others = rows(a_study(decided=-1))
    assert first.number is None
    assert first.is_decided
    assert first.why == "decided: no verified plan saves more time than it takes to compile"
    assert not any(row.is_decided for row in others)


def test_a_row_holds_the_figures_of_its_trial() -> None:
    study = a_study()
    row, trial = row_of(study, 3), study.trials[3]
    assert (row.name, row.state, row.verdict) == ("inductor + channels_last", "complete", "passed")
    assert row.speedup == trial.speedup
    assert row.time is not None
    assert row.time.mid * row.speedup.mid == pytest.approx(study.eager.baseline_time.mid), "on the scale of eager's"
    assert (row.cold_s, row.warm_s, row.memory) == (38.2, 4.1, "312 MiB (1.11×)")
    assert (row.error, row.floor) == (2.1e-7, 1.9e-7)


def test_eagers_row_comes_from_the_inspection() -> None:
    row = row_of(a_study(), None)
    assert row.time == an_inspection().measurement.baseline_time
    assert (row.plan, row.cold_s, row.memory, row.speedup) == (EAGER, 0.31, "280 MiB", None)


def test_the_floor_is_that_of_the_check_with_the_largest_error() -> None:
    verdict = Verdict(
        (
            Check("a", Outcome.PASS, "", error=1e-7, floor=9e-1),
            Check("b", Outcome.PASS, "", error=1e-3, floor=2e-3),
            Check("c", Outcome.PASS, ""),
        )
    )
    row = row_of(a_study([a_trial(verdict=verdict)]), 0)
    assert (row.error, row.floor) == (1e-3, 2e-3)


def test_a_trial_of_eager_itself_is_the_baseline_and_no_candidate() -> None:
    assert [row.name for row in rows(a_study([a_trial(0, EAGER, 1.0)]))] == ["eager"]


@pytest.mark.parametrize(
    ("kind", "message", "sentence"),
    [
        (FailureKind.TIMED_OUT, "more than 600 s", "took too long in compile: more than 600 s"),
        (FailureKind.DIED, "SIGSEGV", "its process died in compile: SIGSEGV"),
        (FailureKind.RAISED, "ValueError: two\nlines", "raised an error in compile: ValueError: two lines"),
        (FailureKind.OUT_OF_MEMORY, "2 GiB asked", "out of memory in compile: 2 GiB asked"),
        (FailureKind.UNSUPPORTED, "no Triton", "not supported here: no Triton"),
        (
            FailureKind.OUT_OF_BUDGET,
            "the budget of 30 s is spent",
            "not tried to the end, but ended in compile: the budget of 30 s is spent",
        ),
    ],
)
def test_each_failure_has_its_sentence(kind: FailureKind, message: str, sentence: str) -> None:
    assert why(a_failure(kind, message=message)) == sentence


def test_every_kind_of_failure_has_a_sentence() -> None:
    assert all(why(a_failure(kind)) for kind in FailureKind)


def test_a_compilers_pages_are_cut_in_a_sentence() -> None:
    assert len(why(a_failure(message="x" * 5000))) < 300
    assert len(why(a_trial(state=TrialState.FAIL, reason="x" * 5000))) < 300


def test_a_wrong_answer_is_told_with_its_error_and_the_noise_floor() -> None:
    assert why(a_trial(verdict=WRONG)) == (
        "wrong answer: values: output[0] is off at (3, 17): -0.412 for 0.371 (error 3.2e-01, noise floor 1.9e-07)"
    )


def test_what_cannot_be_compared_is_told_apart_from_what_is_wrong() -> None:
    assert why(a_trial(verdict=UNCLEAR)).startswith("not comparable, so not verified: distribution: eager differs")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state": TrialState.WAITING}, "not tried: the search ended first"),
        ({"state": TrialState.RUNNING}, "interrupted during the trial"),
        ({"state": TrialState.FAIL, "reason": "lost"}, "failed: lost"),
        ({"state": TrialState.FAIL, "reason": ""}, "failed: no reason was recorded"),
        ({"state": TrialState.PRUNED, "measurement": None, "reason": "behind"}, "stopped early: behind"),
        ({"verdict": None}, "not verified, so it cannot be chosen"),
        ({"verdict": Verdict(())}, "not comparable, so not verified: 0 checks passed"),
        ({"measurement": None}, "not timed, so it cannot be chosen"),
        ({"costs": None}, "its compile time was not measured, so it cannot be chosen"),
    ],
)
def test_what_is_missing_from_a_trial_is_said(changes: dict[str, Any], sentence: str) -> None:
    assert why(a_trial(**changes)) == sentence


def test_a_running_study_says_what_is_under_way() -> None:
    running = [a_trial(0, state=TrialState.RUNNING), a_trial(1, state=TrialState.WAITING), a_trial(2, costs=CHEAP)]
    assert [row_of(a_study(running, decided=None), n).why for n in range(3)] == [
        "running",
        "waiting",
        "verified, and pays back",
    ]


def test_a_pruned_trial_says_where_it_stood() -> None:
    trial = a_trial(state=TrialState.PRUNED, measurement=a_measurement(1.1, 12, pruned=True))
    assert why(trial).startswith("stopped after 12 rounds: at 1.1")
    assert why(trial).endswith("it could no longer lead")


def test_slower_and_not_surely_faster_are_told_apart() -> None:
    assert why(a_trial(speedup=0.8)).startswith("slower than eager: 0.8")
    assert why(a_trial(speedup=1.0)).startswith("no faster than eager: ")
    wide = replace(make_exact_measurement(1.0), candidate_s=(0.001, 0.1, 0.02, 0.05, 0.002), baseline_s=(0.01,) * 5)
    assert (
        why(a_trial(measurement=wide)) == "inconclusive: 0.0191× to 13.1× eager's speed, so it may be slower or faster"
    )


def test_what_does_not_pay_back_is_told_with_its_figures() -> None:
    few = WorkloadSpec("zoo:vision.resnet50", device="cuda", calls=1_000)
    trial = a_trial(speedup=2.0, measurement=make_exact_measurement(2.0), costs=Costs(62.0))
    assert why(trial, workload=few, inspection=an_inspection(measurement=make_exact_measurement(1.0))) == (
        "faster, but does not pay back: 62.0 s of compiling need 10,000 calls to pay back, and 1,000 are expected"
    )


def test_what_pays_back_only_by_its_median_lost_by_its_interval() -> None:
    assert why(a_trial(costs=CHEAP)) == "faster, but may not save more time than it takes to compile"


def test_losing_to_the_decided_plan_says_to_which_and_by_what() -> None:
    best, tied, slower = (
        a_trial(0, speedup=1.8),
        a_trial(1, a_plan(scope="regional"), 1.8),
        a_trial(2, a_plan(shapes="dynamic"), 1.25),
    )
    faster = a_trial(3, a_plan(mode="max-autotune"), 2.9, costs=Costs(512.0))
    sentences = [row_of(a_study((best, tied, slower, faster), decided=0), n).why for n in range(4)]
    assert sentences[0].startswith("decided: saves ")
    assert sentences[0].endswith(" over 100,000 calls")
    assert sentences[1].startswith("no clear gain over inductor (1.8")
    assert sentences[1].endswith("which is simpler or costs less to compile")
    assert sentences[2].startswith("slower than inductor: 1.")
    assert sentences[3].startswith("faster per call than inductor (2.9")
    assert sentences[3].endswith("but compiling it takes longer than that saves")


def test_a_lower_speed_is_not_told_as_a_gain_because_intervals_overlap() -> None:
    best, slower = a_trial(0, speedup=1.7), a_trial(1, a_plan(threads=1), 1.69, costs=CHEAP)
    sentence = row_of(a_study((best, slower), decided=0), 1).why
    assert sentence.startswith("measured slower than inductor (1.6")
    assert sentence.endswith("though their intervals overlap")


@pytest.mark.parametrize(
    ("speed", "start", "end"),
    [
        (0.9, "slower than inductor: 0.9", "] its speed, timed against each other"),
        (1.1, "faster per call than inductor (1.1", "timed against each other)"),
        (
            1.001,
            "no clear gain over inductor (1.00",
            "timed against each other), which is simpler or costs less to compile",
        ),
    ],
)
def test_a_duel_says_more_than_trials(speed: float, start: str, end: str) -> None:
    duel = Duel(a_plan(), a_measurement(speed))
    best, other = a_trial(0, speedup=1.7), a_trial(1, a_plan(threads=1), 1.71, duel=duel)
    sentence = row_of(a_study((best, other), decided=0), 1).why
    assert sentence.startswith(start)
    assert sentence.endswith(end)


def test_compiling_is_blamed_only_where_it_costs_more_than_is_saved() -> None:
    best, faster = a_trial(0, speedup=1.7), a_trial(1, a_plan(mode="max-autotune"), 2.9)
    sentence = row_of(a_study((best, faster), decided=0), 1).why  # as where --plan named the other alone
    assert sentence.startswith("faster per call than inductor (2.9")
    assert "compiling" not in sentence
    duel = Duel(a_plan(), a_measurement(1.1))
    dear = a_trial(1, a_plan(threads=1), 1.71, duel=duel, costs=Costs(51_200.0))
    few = WorkloadSpec("zoo:vision.resnet50", device="cuda", calls=10_000_000)
    sentence = row_of(a_study((best, dear), decided=0, workload=few), 1).why
    assert sentence.endswith("timed against each other), but compiling it takes longer than that saves")


def test_what_passes_a_memory_limit_is_out_for_that() -> None:
    spec = WorkloadSpec("zoo:vision.resnet50", device="cuda", memory_limit=150 << 20)
    heavy = a_trial(0, a_plan(), 1.5, costs=Costs(0.001, 0.0, 200 << 20, 280 << 20))
    unknown = a_trial(1, a_plan(mode="max-autotune"), 1.5, costs=Costs(0.001))
    light = a_trial(2, a_plan(scope="regional"), 1.5, costs=Costs(0.001, 0.0, 100 << 20, 280 << 20))
    found = a_study((heavy, unknown, light), decided=2, workload=spec)
    assert row_of(found, 0).why == "its peak memory is 200 MiB, and the limit is 150 MiB"
    assert row_of(found, 1).why == "its peak memory is unknown, and the limit is 150 MiB"
    assert row_of(found, 2).why.startswith("decided")


def test_with_memory_as_the_objective_memory_is_what_is_lost_by() -> None:
    spec = WorkloadSpec("zoo:vision.resnet50", device="cuda", objective="memory")
    light = a_trial(0, a_plan(), 1.0, costs=Costs(0.001, 0.0, 100 << 20, 280 << 20))
    heavier = a_trial(1, a_plan(scope="regional"), 1.5, costs=Costs(0.001, 0.0, 200 << 20, 280 << 20))
    heavy = a_trial(2, a_plan(shapes="dynamic"), 1.5, costs=Costs(0.001, 0.0, 300 << 20, 280 << 20))
    unknown = a_trial(3, a_plan(mode="max-autotune"), 1.5, costs=Costs(0.001))
    found = a_study((light, heavier, heavy, unknown), decided=0, workload=spec)
    assert row_of(found, 0).why == "decided: it has the lowest peak memory"
    assert row_of(found, 1).why.startswith("needs more memory than inductor, or is more complex: peak memory 200 MiB")
    assert row_of(found, 2).why == "does not clearly need less memory: peak memory 300 MiB, eager's 280 MiB"
    assert row_of(found, 3).why == "its peak memory could not be measured"
    searching = a_study((heavier,), decided=None, workload=spec)
    assert row_of(searching, 1).why == "verified: peak memory 200 MiB, eager's 280 MiB"


def test_a_decision_marks_only_a_proven_trial_of_its_plan() -> None:
    lost = replace(a_trial(0), verdict=WRONG)
    found = a_study([lost], decided=0)
    assert not row_of(found, 0).is_decided
    assert row_of(found, 0).why.startswith("wrong answer")


def test_the_latest_number_of_calls_holds() -> None:
    trial = a_trial(0)
    latest = WorkloadSpec("zoo:vision.resnet50", device="cuda", calls=5)
    found = replace(a_study([trial], decided=None), decision=a_decision(trial, latest))
    assert workload_of(found) == latest


@pytest.mark.parametrize("restarts", [1, 7])
@pytest.mark.parametrize("warm_s", [None, 4.0])
def test_costs_are_those_by_which_it_was_decided(restarts: int, warm_s: float | None) -> None:
    spec = WorkloadSpec("zoo:vision.resnet50", device="cuda", calls=12_345, restarts=restarts)
    trial = a_trial(costs=Costs(40.0, warm_s))
    study = a_study([trial], workload=spec)
    economics = CostModel(study.inspection.measurement.baseline_time.mid, spec.calls, restarts)
    cost, baseline, expected = cost_of(trial, study), baseline_cost(study), economics.break_even_calls(trial)
    assert cost is not None
    assert baseline is not None
    assert expected is not None
    assert cost.seconds_after(spec.calls) == pytest.approx(economics.cost(trial).mid)
    assert baseline.seconds_after(spec.calls) == pytest.approx(economics.baseline_cost)
    assert cost.break_even(baseline) == pytest.approx(expected.mid)


@pytest.mark.parametrize("is_decided", [True, False])
def test_where_eager_was_held_up_when_it_was_looked_at_every_figure_is_from_beside_a_plan(is_decided: bool) -> None:
    held_up = an_inspection(measurement=a_measurement(1.0, seed=90, baseline_s=(0.5,) * 60))
    trials = a_trial(0), a_trial(1, a_plan(mode="max-autotune"))
    study = a_study(trials, decided=None, inspection=held_up)
    quickest = min((trial.measurement for trial in trials if trial.measurement), key=lambda m: m.baseline_time.mid)
    if is_decided:
        found = decide(History(study.workload, held_up, study.trials), study.environment)
        assert found.baseline_s == quickest.baseline_time.mid
        study = replace(study, decision=found)
    eager = quickest.baseline_time
    assert study.eager == quickest
    assert baseline_cost(study) == Cost(0.0, eager.mid)
    assert row_of(study, None).time == eager
    assert dict(inspection_facts(study))["Time per call"] == show.seconds(eager.mid)
    told = times_of(row_of(study, None), study)
    assert told
    assert told.time == quickest.baseline_time
    assert series_of(study)[0].measurement == quickest
    assert study.to_dict()["baseline"]["seconds_per_call"]["mid"] == eager.mid
    assert "something slowed eager down while it was profiled" in study.trust.sentence


def test_what_disturbed_is_said_once_at_the_top_and_by_the_decided_plan_first() -> None:
    def make_noted_trial(number: int, mode: str, *said: str) -> Trial:
        trial = a_trial(number, a_plan(mode=mode))
        assert trial.measurement is not None
        return replace(trial, measurement=replace(trial.measurement, notes=said))

    trials = (
        make_noted_trial(0, "default", "eager drifted by -12% from first to last", "the clocks fell"),
        make_noted_trial(1, "max-autotune", "eager drifted by +31.5% from first to last", "the clocks fell"),
        make_noted_trial(2, "reduce-overhead", "eager drifted by +7% from first to last", "the model was looked at"),
    )
    looked_at = replace(an_inspection(), notes=("the model was looked at",))
    study = a_study(trials, decided=1, inspection=looked_at)
    assert notes(study) == ["the model was looked at"]
    assert study.trust.sentence.endswith(": eager drifted by +31.5% from first to last.")


def test_a_machine_was_quiet_where_each_process_was_however_few_there_are() -> None:
    trials = tuple(
        a_trial(number, a_plan(mode=mode), repeats=(a_measurement(1.5, seed=70 + number),))
        for number, mode in enumerate(("default", "max-autotune"))
    )
    study = a_study(trials, decided=0, workload=WorkloadSpec("zoo:vision.resnet50"))
    assert study.trials[0].speedup is not None
    assert study.trials[0].speedup.half_width > QUIET_HALF_WIDTH, "two processes on a CPU tell no more"
    assert study.trust.reliability is Reliability.GOOD
    assert study.trust.sentence.startswith("The machine was quiet")


def test_a_report_goes_by_the_baseline_of_its_decision_whatever_was_tried_since() -> None:
    first, since = a_trial(0), a_trial(1, a_plan(mode="max-autotune"))
    assert since.measurement is not None
    quick = replace(since.measurement, baseline_s=tuple(s / 3 for s in since.measurement.baseline_s))
    study = a_study([first, replace(since, measurement=quick)], decided=0)
    assert study.decision is not None
    assert study.eager.baseline_time.mid == study.decision.baseline_s == study.inspection.measurement.baseline_time.mid
    assert replace(study, decision=None).eager == quick
    assert not any("slowed it down" in note for note in notes(study))


def test_break_even_is_never_where_nothing_is_gained_and_at_once_where_nothing_is_paid() -> None:
    eager = Cost(0.0, 1.0)
    assert Cost(10.0, 0.5).break_even(eager) == 20
    assert Cost(0.0, 0.5).break_even(eager) == 0
    assert Cost(10.0, 1.0).break_even(eager) == float("inf")
    assert Cost(0.0, 2.0).break_even(eager) == float("inf")


def test_partial_records_make_rows() -> None:
    single = a_trial(0, measurement=make_exact_measurement(1.5, 1))
    empty = a_trial(1, a_plan(scope="regional"), measurement=a_measurement(candidate_s=(), baseline_s=()))
    blank = an_inspection(measurement=a_measurement(candidate_s=(), baseline_s=()), peak_memory=None)
    found = a_study((single, empty), decided=None, state=StudyState.INTERRUPTED, inspection=blank)
    assert row_of(found, 0).speedup is not None
    assert row_of(found, 1).speedup is None
    assert row_of(found, 1).why == "not timed, so it cannot be chosen"
    assert row_of(found, None).time is None
    assert row_of(found, None).memory == "280 MiB", "as it was beside the plans"
    assert baseline_cost(found) is None


def test_every_trial_of_a_real_study_has_a_reason() -> None:
    found = rows(a_study())
    assert found
    assert all(row.why for row in found)


def make_exact_measurement(speedup: float, rounds: int = 3) -> Any:
    """Return a measurement without noise, so that costs can be worked out by hand."""
    return a_measurement(candidate_s=(12.4e-3 / speedup,) * rounds, baseline_s=(12.4e-3,) * rounds)
