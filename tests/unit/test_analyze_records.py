"""The record of an analysis: JSON both ways, and statistics derived from raw samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis_samples import HANG, a_batch, a_steady, an_analysis, some_calls
from builders import EAGER_S, a_failure, a_measurement, a_trial
from torchwise.errors import InputError
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.analysis import Analysis, Batch, Consistency, Grade, Memory
from torchwise.records.processes import probability_below
from torchwise.records.statistics import Interval


@pytest.mark.parametrize(
    "record",
    [
        an_analysis(),
        an_analysis(None, None),
        an_analysis(trial=a_failure(), steady=None, batches=(Batch(4, reason=str(HANG)),)),
    ],
)
def test_an_analysis_comes_back_from_json_as_it_was(record: Analysis) -> None:
    assert Analysis.from_json(record.to_json()) == record


def test_another_schema_and_another_type_are_refused() -> None:
    with pytest.raises(InputError, match=r"schema is 'torchwise.analysis/9', but this version reads"):
        Analysis.from_json(replace(an_analysis(), schema="torchwise.analysis/9").to_json())
    with pytest.raises(InputError, match="this is no Analysis"):
        Analysis.from_json('{"schema": "torchwise.analysis/1", "workload": 3}')


def test_quantiles_variation_and_mean_are_of_the_calls() -> None:
    side = Consistency(tuple(range(1, 101)))
    assert side.quantile(0.5) == pytest.approx(50.5)
    assert side.quantile(0.99) == pytest.approx(99.01)
    assert side.mean == pytest.approx(50.5)
    assert side.variation == pytest.approx(28.866 / 50.5, rel=1e-3)


def test_drift_is_from_the_first_third_to_the_last() -> None:
    assert Consistency((1.0,) * 10 + (1.1,) * 10 + (1.5,) * 10).drift == pytest.approx(0.5)
    assert Consistency((1.0, 1.0, 1.5, 1.5, 2.0, 2.0)).drift == 0.0  # too few to tell


def test_an_outlier_lies_three_interquartile_ranges_out() -> None:
    quiet = (1.0, 1.1, 1.2, 1.3, 1.4) * 4
    assert Consistency(quiet).outliers == 0
    assert Consistency((*quiet, 1.9, 2.5, 9.0)).outliers == 2


def test_the_planning_figure_is_the_highest_peak_with_model_inputs_and_margin() -> None:
    held = Memory(100, 20, start=400, call=300, baseline_call=250)
    assert held.reserve == 624
    assert held.overhead == 50
    assert replace(held, start=None).reserve == 504
    assert Memory(100, 20).reserve is None
    assert Memory(100, 20).overhead is None


def test_economics_are_on_the_scale_of_eager_beside_the_plan() -> None:
    spec = WorkloadSpec("zoo:vision.resnet50", calls=10_000, restarts=3)
    timed = a_measurement(candidate_s=(0.010,) * 20, baseline_s=(0.015,) * 20)
    record = an_analysis(workload=spec, trial=a_trial(measurement=timed), steady=None)  # 38.2 s cold, 4.1 s warm
    assert record.cost_model.baseline_s == 0.015
    assert record.time
    assert record.time.mid == pytest.approx(0.010)
    assert record.break_even_calls is not None
    assert record.break_even_calls.mid == pytest.approx((38.2 + 2 * 4.1) / 0.005)
    assert record.saved_s == pytest.approx(10_000 * 0.005 - (38.2 + 2 * 4.1))


def test_eager_that_was_held_up_beside_the_plan_is_told_by_the_inspection() -> None:
    held_up = a_measurement(candidate_s=(0.5,) * 20, baseline_s=(1.0,) * 20)
    record = an_analysis(trial=a_trial(measurement=held_up))
    assert record.cost_model.baseline_s == record.inspection.measurement.baseline_time.mid


def test_both_processes_tell_the_speed_up_and_calls_are_on_its_scale() -> None:
    steady = a_steady(plan=some_calls(0.100), baseline=some_calls(0.140))
    record = an_analysis(trial=a_trial(measurement=a_measurement(1.5)), steady=steady)
    assert record.speedup
    assert 1.4 < record.speedup.mid < 1.5
    assert record.calls
    own, eager = record.calls
    assert eager.quantile(0.5) == pytest.approx(record.cost_model.baseline_s)
    assert eager.quantile(0.5) / own.quantile(0.5) == pytest.approx(record.speedup.mid)
    assert own.variation == pytest.approx(steady.plan.variation)


def test_the_return_on_compiling_is_the_net_saving_over_its_seconds() -> None:
    record = an_analysis()
    found, earned = record.cost_model, record.return_on_compiling
    assert earned is not None
    assert record.saved_s is not None
    assert earned.mid == pytest.approx(record.saved_s / found.overhead(record.trial))
    assert earned.low <= earned.mid <= earned.high
    assert found.count_calls(found.overhead(record.trial)) == pytest.approx(
        found.overhead(record.trial) / found.baseline_s
    )
    eager = an_analysis(EAGER)
    assert (eager.return_on_compiling, eager.probability_of_loss, eager.grade) == (None, None, None)


def test_the_probability_of_a_loss_follows_from_the_interval() -> None:
    """At the calls after which an end of the interval breaks even, it is that of the end's tail."""
    record = an_analysis()
    pays = record.break_even_calls
    assert pays is not None
    risks = []
    for calls in (1, pays.low, pays.mid, pays.high, 10**9):
        spec = replace(record.workload, calls=max(round(calls), 1))
        risk = replace(record, workload=spec).probability_of_loss
        assert risk is not None
        risks.append(risk)
    assert risks == sorted(risks, reverse=True)
    assert risks[0] == 1.0
    assert risks[1:4] == [
        pytest.approx(0.975, abs=0.003),
        pytest.approx(0.5, abs=0.01),
        pytest.approx(0.025, abs=0.003),
    ]
    assert risks[4] < 0.02


@pytest.mark.parametrize(
    ("ratio", "bound", "probability"),
    [
        (Interval(1.0, 2.0, 4.0), 0.0, 0.0),
        (Interval(1.0, 2.0, 4.0), 1.0, 0.025),
        (Interval(1.0, 2.0, 8.0), 1.0, 0.025),
        (Interval(1.0, 2.0, 8.0), 8.0, 0.975),
        (Interval(2.0, 2.0, 2.0), 1.9, 0.0),
        (Interval(2.0, 2.0, 2.0), 2.0, 0.5),
        (Interval(2.0, 2.0, 2.0), 2.1, 1.0),
    ],
)
def test_each_side_of_an_interval_has_a_tail_of_its_own(ratio: Interval, bound: float, probability: float) -> None:
    assert probability_below(ratio, bound) == pytest.approx(probability, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "grade"),
    [
        ({"calls": 10**9}, Grade.EXCELLENT),
        ({"calls": 30_000}, Grade.GOOD),
        ({"calls": 100}, Grade.POOR),
    ],
)
def test_the_grade_is_one_word_for_what_the_plan_earns(changes: dict[str, int], grade: Grade) -> None:
    assert an_analysis(workload=WorkloadSpec("m:f", device="cuda", **changes)).grade is grade  # type: ignore[arg-type]


def test_what_failed_is_wrong_or_cannot_be_told_has_a_grade_of_its_own() -> None:
    assert an_analysis(trial=a_failure(), steady=None).grade is Grade.UNUSABLE
    assert an_analysis(speedup=None).grade is Grade.UNUSABLE
    record = an_analysis()
    assert record.break_even_calls is not None
    doubtful = replace(record, workload=replace(record.workload, calls=round(record.break_even_calls.mid)))
    assert doubtful.grade is Grade.INCONCLUSIVE


def test_what_is_not_proven_pays_never() -> None:
    wrong = an_analysis(None, None)
    assert (wrong.break_even_calls, wrong.saved_s, wrong.speedup) == (None, None, None)


def test_throughput_is_items_a_second_and_batches_that_failed_have_none() -> None:
    batch = Batch(8, a_measurement(candidate_s=(0.5,) * 5, baseline_s=(1.0,) * 5))
    lost = Batch(16, reason="out of memory")
    record = an_analysis(batches=(batch, lost, a_batch(1)), batch_size=1)
    given, figures = record.batch_figures
    assert not figures.is_comparable
    scaled = replace(batch, eager=a_measurement(candidate_s=(1.0,) * 5, baseline_s=(4 * EAGER_S,) * 5))
    (scaled_figures,) = replace(record, batches=(scaled,)).batch_figures
    eager_s = record.cost_model.baseline_s / (4 * EAGER_S)  # on the scale of eager beside the plan
    assert scaled_figures.is_comparable
    assert scaled_figures.eager_s == pytest.approx(eager_s)
    assert scaled_figures.throughput == pytest.approx(8 / (eager_s / 2))
    assert (figures.throughput, figures.baseline_throughput) == (16.0, 8.0)
    assert (given.speedup, given.eager_s) == (record.speedup, record.cost_model.baseline_s)  # there, the page's own
