"""The speed-up across processes: the coverage of its interval, contradictions, and the claim of a single process."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sketches import INDUCTOR, a_trial, make_measurement

from torchwise.records import Interval, Trial
from torchwise.records.answer import Answer, exceeds
from torchwise.records.processes import DEGREES, PROCESS_SPREAD, speedup_across


def draw(rng: np.random.Generator, count: int, spread: float, within: float) -> Interval:
    """Return the speed-up of `count` processes of a plan that is as fast as eager, on a machine of a known spread."""
    logs = rng.normal(0.0, math.hypot(spread, within), count)
    return speedup_across([make_measurement(*(math.exp(log + end * within) for end in (-1, 1))) for log in logs])


def measure_coverage(count: int, spread: float, within: float = 0.003, times: int = 1500) -> float:
    rng = np.random.default_rng(29)
    found = [draw(rng, count, spread, within) for _ in range(times)]
    return sum(one.low <= 1 <= one.high for one in found) / times


@pytest.mark.parametrize("spread", [0.004, 0.02, 0.3])
@pytest.mark.parametrize("count", [DEGREES + 1, DEGREES + 3])
def test_from_five_processes_on_95_percent_are_95_percent_whatever_the_spread(count: int, spread: float) -> None:
    assert 0.93 <= measure_coverage(count, spread) <= 0.97


@pytest.mark.parametrize("count", range(1, DEGREES + 1))
def test_fewer_processes_cover_no_less_where_the_machine_is_no_worse_than_the_prior(count: int) -> None:
    assert measure_coverage(count, PROCESS_SPREAD["cpu"]) >= 0.93


def test_one_process_claims_no_less_than_what_processes_differ_by() -> None:
    on_gpu = make_measurement(1.5, candidate_device_s=(1.0, 1.0), baseline_device_s=(1.0, 1.0))
    for one, device in ((make_measurement(1.5), "cpu"), (on_gpu, "cuda")):
        found = speedup_across([one])
        assert found.mid == one.speedup.mid
        assert found.half_width > 1.96 * PROCESS_SPREAD[device]


def test_more_processes_that_agree_narrow_it() -> None:
    widths = [speedup_across([make_measurement(1.5)] * count).half_width for count in range(1, DEGREES + 2)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1e-15


def test_what_is_unsure_within_processes_counts_where_they_are_few() -> None:
    sure, unsure = ([make_measurement(*ends)] * 2 for ends in ((1.5,), (1.0, 2.25)))
    assert speedup_across(unsure).half_width > speedup_across(sure).half_width


@pytest.mark.parametrize("others", [(6.0,), (6.1, 5.9), (6.0, 6.1, 5.9, 6.2)])
def test_an_interval_that_another_process_contradicts_tells_no_figure(others: tuple[float, ...]) -> None:
    assert not speedup_across([make_measurement(40.5, 105.0), *map(make_measurement, others)]).is_usable


def test_processes_on_both_sides_of_eager_are_inconclusive() -> None:
    trial = a_trial(INDUCTOR, 1.6, 1.62, repeats=(make_measurement(0.7, 0.71), make_measurement(1.3, 1.31)))
    assert trial.speedup is not None
    assert exceeds(trial.speedup) is Answer.INCONCLUSIVE


def test_a_trial_is_judged_by_all_its_processes() -> None:
    trial = replace(a_trial(INDUCTOR), measurement=make_measurement(2.0), repeats=(make_measurement(8.0),))
    assert trial.speedup is not None
    assert trial.speedup.mid == pytest.approx(4.0), "the geometric mean"
    assert trial.speedup == speedup_across(trial.processes)
    assert Trial(0, INDUCTOR).speedup is None


@pytest.mark.parametrize("mids", [(1e-290, 1e290), (1e-307,), (1e300, 1e300)])
def test_what_a_float_can_hardly_hold_has_an_interval_in_order(mids: tuple[float, ...]) -> None:
    found = speedup_across([make_measurement(mid) for mid in mids])
    assert 0 < found.low <= found.mid <= found.high


def test_one_process_may_say_no_by_itself_but_not_yes() -> None:
    for ends, answer in (
        ((0.95, 0.96), Answer.NO),  # clearly lower
        ((0.99, 1.01), Answer.NO),  # the same
        ((0.6, 0.99), Answer.INCONCLUSIVE),  # lower, on a machine that was too busy to tell
        ((1.08, 1.09), Answer.INCONCLUSIVE),  # higher by less than processes differ
        ((1.5, 1.51), Answer.YES),  # higher by far
    ):
        trial = replace(a_trial(INDUCTOR), measurement=make_measurement(*ends), repeats=())
        assert trial.is_faster is answer
    assert Trial(0, INDUCTOR).is_faster is None
