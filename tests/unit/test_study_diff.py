"""Two studies side by side, and one target's history: plans that became slower, wrong or were lost, and mere drift."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from builders import WRONG, a_failure, a_measurement, a_study, a_trial, an_inspection, samples
from dashboard_samples import LAST, PLAIN, SPEEDS, TARGET, a_version, some_processes
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Measurement, Study
from torchwise.records.answer import Change, Judge, Timing
from torchwise.records.statistics import CONFIDENCE
from torchwise.records.study_diff import compare_studies, differences, history
from torchwise.report.studies import render_history, render_study_diff
from torchwise.report.studies import summarize_history as summary

JUDGE = Judge(0.05, CONFIDENCE)


def to_timed(measured: Measurement) -> Timing:
    return Timing(measured.candidate_time, measured.speedup)


def scale_times(measured: Measurement, candidate: float, eager: float) -> Measurement:
    return replace(
        measured,
        candidate_s=tuple(s * candidate for s in measured.candidate_s),
        baseline_s=tuple(s * eager for s in measured.baseline_s),
    )


@pytest.mark.parametrize(
    ("candidate", "eager", "change"),
    [
        (1.2, 1.0, Change.SLOWER),
        (0.8, 1.0, Change.FASTER),
        (1.2, 1.2, Change.DRIFT),  # the machine became slower: so did eager
        (1.0, 0.8, Change.SAME),  # eager became faster: no regression of the plan
        (1.02, 1.0, Change.SAME),  # within the threshold
    ],
)
def test_a_plan_is_judged_by_its_time_and_by_eager_beside_it(candidate: float, eager: float, change: Change) -> None:
    before = a_measurement(1.5)
    assert (
        JUDGE.judge(to_timed(before), to_timed(scale_times(a_measurement(1.5, seed=5), candidate, eager))).change
        is change
    )


def test_eager_is_judged_by_time_alone_and_drifts() -> None:
    before = Measurement(samples(1.0), samples(1.0))
    after = Measurement(samples(1.3, seed=1), samples(1.3, seed=1))
    assert JUDGE.judge(to_timed(before), to_timed(after), eager=True).change is Change.DRIFT


def test_plans_of_two_studies_side_by_side() -> None:
    first = a_study(
        (
            a_trial(0, PLAIN, 1.7, repeats=some_processes(1.7)),
            a_trial(1, LAST, 1.5),
            a_trial(2, PLAIN.with_choice("scope", "regional")),
        )
    )
    second = a_study(
        (
            a_trial(0, PLAIN, 1.2, measurement=a_measurement(1.2, seed=7), repeats=some_processes(1.2)),
            a_trial(1, LAST, None, verdict=WRONG, reason="not proven"),
            a_trial(2, PLAIN.with_choice("shapes", "dynamic")),
        ),
        id=8,
    )
    found = {line.name: line for line in compare_studies(first, second)}
    assert {name: line.change for name, line in found.items()} == {
        "inductor": Change.SLOWER,
        "inductor + channels_last": Change.WRONG,
        "eager": Change.SAME,
        "inductor + regional": Change.NOT_COMPARED,
        "inductor + dynamic": Change.NOT_COMPARED,
    }
    slower = found["inductor"].time
    assert slower is not None
    assert 1.3 < slower.mid < 1.5
    assert found["inductor + regional"].second is None
    back = {line.name: line.change for line in compare_studies(second, first)}
    assert (back["inductor"], back["inductor + channels_last"]) == (Change.FASTER, Change.RIGHT)


def test_a_plan_that_no_longer_ends_is_lost() -> None:
    (line,) = [
        line
        for line in compare_studies(a_study((a_trial(0, PLAIN),)), a_study((a_failure(plan=PLAIN),)))
        if line.name != "eager"
    ]
    assert line.change is Change.LOST


def test_what_two_studies_differ_in_is_said() -> None:
    one, other = a_version("2.11.0", 1.6), a_version("2.13.0", 1.75)
    said = differences(one, other)
    assert "environment: torch: 2.11.0 first, 2.13.0 second" in said
    assert any(line.startswith("speed-up: 1.6") for line in said)
    assert differences(one, one) == []
    page = render_study_diff(one, other, "light")
    assert "2.11.0 first, 2.13.0 second" in page
    assert "faster" in page


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"inspection": an_inspection(identity="0" * 12)}, "they have different models or inputs"),
        ({"workload": WorkloadSpec(TARGET, device="cuda", objective="throughput")}, "they have different objectives"),
    ],
)
def test_studies_of_different_models_are_not_comparable(changes: dict[str, object], why: str) -> None:
    one, other = a_version("2.11.0", 1.7), a_version("2.13.0", 1.2, **changes)
    found = compare_studies(one, other)
    assert {line.change for line in found} == {Change.NOT_COMPARED}
    page = render_study_diff(one, other, "light")
    assert f"The studies are not comparable: {why}" in page
    assert "slower" not in page.partition("<footer>")[0]


def test_what_noise_hides_is_inconclusive() -> None:
    old, new = a_version("2.11.0", 1.7), a_version("2.13.0", 1.6)
    unsure = [replace(study, trials=tuple(replace(t, repeats=()) for t in study.trials)) for study in (old, new)]
    assert {line.name: line.change for line in compare_studies(*unsure)}["inductor"] is Change.INCONCLUSIVE
    (line,) = history(unsure)
    assert line.points[1].change is Change.INCONCLUSIVE
    assert summary([line]) == "2 decisions, 1 inconclusive."
    page = render_history(TARGET, unsure, "light")
    assert '<span class="warning">inconclusive (' in page
    assert 'class="decision none"' in page
    assert "no regression" not in page


def versions() -> list[Study]:
    return [a_version(torch, speed, month) for month, (torch, speed) in enumerate(SPEEDS.items())]


def test_a_history_marks_what_became_worse() -> None:
    (line,) = history(reversed(versions()))
    assert [point.change for point in line.points] == [Change.NOT_COMPARED, Change.FASTER, Change.SLOWER]
    assert [point.study.environment.torch for point in line.points] == list(SPEEDS)
    assert line.points[2].note == "torch: 2.13.0+cu130 before, 2.15.0+cu130 now"
    assert line.regressions == 1
    assert summary([line]) == "3 decisions, 1 regression."
    page = render_history(TARGET, versions(), "dark")
    assert '<span class="bad">slower (speed-up 0.8' in page
    assert page.count("<img alt=") == 1
    assert page.count(f"Newest study: {line.points[2].study.trust.sentence}") == 1


def test_another_machine_or_request_is_another_line() -> None:
    old, new, _ = versions()
    moved = replace(new, environment=replace(new.environment, gpu="NVIDIA H100"))
    asked = replace(new, allow="lower-precision")
    running = replace(new, decision=None)
    assert [len(line.points) for line in history([old, moved, asked, running])] == [1, 1, 1]


def test_a_study_without_the_trial_that_it_was_decided_by_is_left_out() -> None:
    old, new, _ = versions()
    assert [len(line.points) for line in history([old, replace(new, trials=new.trials[:1])])] == [1]
    assert history([replace(new, trials=())]) == []


def test_another_model_is_not_compared() -> None:
    old, new, _ = versions()
    changed = replace(new, inspection=an_inspection(identity="0" * 12))
    ((_, point),) = (line.points for line in history([old, changed]))
    assert point.change is Change.NOT_COMPARED
    assert point.note == "the model or the inputs changed"


def test_a_plan_that_was_proven_and_fails_now_is_a_regression() -> None:
    old, new, _ = versions()
    wrong = a_trial(1, LAST, None, verdict=WRONG, reason="not proven: values")
    now = a_study((new.trials[0], wrong), decided=0, environment=new.environment, created_at=new.created_at)
    (line,) = history([old, now])
    assert line.points[1].change is Change.WRONG
    assert "inductor + channels_last was verified before, and fails now" in line.points[1].note


def test_a_decision_for_eager_is_a_point_like_any_other() -> None:
    left_alone = [a_study((a_trial(0, PLAIN, 0.9),), decided=5, created_at=float(at)) for at in (1, 2)]
    (line,) = history(left_alone)
    assert [point.row.name for point in line.points] == ["eager", "eager"]
    assert [b.change for _, b in pairwise(line.points)] == [Change.SAME]
