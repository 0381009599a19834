"""Intervals from samples: they cover the truth as often as they say, pairs cancel drift, and nothing is random."""

from __future__ import annotations

import numpy as np
import pytest

from torchwise.records import Interval, statistics
from torchwise.records.statistics import median_interval, ratio_interval


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([3.0], Interval(3.0, 3.0, 3.0)),
        ([3.0, 1.0], Interval(1.0, 2.0, 3.0)),
        ([5.0, 5.0, 5.0, 5.0], Interval(5.0, 5.0, 5.0)),
    ],
)
def test_few_or_equal_samples_by_hand(samples: list[float], expected: Interval) -> None:
    assert median_interval(samples) == expected


def test_the_middle_is_the_median_and_lies_inside() -> None:
    samples = [1.0, 9.0, 2.0, 4.0, 100.0]
    interval = median_interval(samples)
    assert interval.mid == 4.0
    assert 1.0 <= interval.low <= interval.mid <= interval.high <= 100.0


def test_the_same_samples_always_give_the_same_interval() -> None:
    samples = np.random.default_rng(5).lognormal(size=30).tolist()
    np.random.seed(1)
    first = median_interval(samples)
    statistics._median_interval.cache_clear()  # worked out again, and not remembered
    np.random.seed(2)
    assert median_interval(samples) == first
    assert median_interval(tuple(samples)) == first


def test_the_interval_scales_with_its_samples() -> None:
    samples = np.random.default_rng(5).lognormal(size=30)
    one, thousand = median_interval(samples.tolist()), median_interval((samples * 1024).tolist())
    assert thousand == Interval(one.low * 1024, one.mid * 1024, one.high * 1024)


@pytest.mark.parametrize("count", [10, 25, 60])
def test_the_interval_holds_the_true_median_about_95_times_in_100(count: int) -> None:
    rng = np.random.default_rng(count)
    studies = 400
    # Skewed to the right, as times are. The median of exp(normal) is exp(0).
    held = [i.low <= 1.0 <= i.high for i in (median_interval(rng.lognormal(0, 0.2, count)) for _ in range(studies))]
    assert 0.92 <= np.mean(held) <= 0.985


def test_more_samples_give_a_narrower_interval() -> None:
    rng = np.random.default_rng(3)
    widths = [median_interval(rng.lognormal(0, 0.2, count)).half_width for count in (10, 100, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 4 * widths[2]


def test_a_few_wild_samples_do_not_move_it() -> None:
    rng = np.random.default_rng(4)
    samples = rng.normal(1.0, 0.01, 40)
    samples[::10] *= 50
    interval = median_interval(samples.tolist())
    assert interval.high < 1.02


def test_pairs_cancel_the_drift_of_the_machine() -> None:
    rng = np.random.default_rng(6)
    rounds = 40
    clock = np.linspace(1.0, 2.0, rounds)  # the machine slows to half its speed
    baseline = 1.5 * clock * rng.normal(1, 0.002, rounds)
    candidate = 1.0 * clock * rng.normal(1, 0.002, rounds)
    paired = ratio_interval(baseline, candidate)
    assert paired.low <= 1.5 <= paired.high
    assert paired.half_width < 0.002
    assert median_interval(baseline).half_width > 20 * paired.half_width
    in_another_order = ratio_interval(baseline, rng.permutation(candidate))
    assert in_another_order.half_width > 20 * paired.half_width


def test_the_interval_of_a_ratio_covers_the_true_speed_up() -> None:
    rng = np.random.default_rng(7)
    held = []
    for _ in range(300):
        drift = np.exp(np.cumsum(rng.normal(0, 0.02, 25)))
        interval = ratio_interval(1.25 * drift * rng.lognormal(0, 0.01, 25), drift * rng.lognormal(0, 0.01, 25))
        held.append(interval.low <= 1.25 <= interval.high)
    assert 0.92 <= np.mean(held) <= 0.985


def test_the_ratio_is_of_the_first_over_the_second() -> None:
    assert ratio_interval([6.0, 8.0], [2.0, 2.0]) == Interval(3.0, 3.5, 4.0)


def test_no_samples_and_unpaired_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples is empty, but a median needs at least one"):
        median_interval([])
    with pytest.raises(ValueError, match="3 and 2 samples, but pairs need as many of one as of the other"):
        ratio_interval([1, 2, 3], [1, 2])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 2, 3), (3, 4, 5), True), ((1, 2, 3), (3.1, 4, 5), False), ((0, 5, 9), (4, 5, 6), True)],
)
def test_overlap(one: tuple[float, float, float], other: tuple[float, float, float], expected: bool) -> None:
    assert Interval(*one).overlaps(Interval(*other)) is expected
    assert Interval(*other).overlaps(Interval(*one)) is expected


def test_half_width_is_relative_to_the_middle() -> None:
    assert Interval(0.98, 1.0, 1.02).half_width == pytest.approx(0.02)
    assert Interval(-3.0, -2.0, -1.0).half_width == pytest.approx(0.5)
    assert Interval(0.0, 0.0, 0.0).half_width == float("inf")


def test_an_interval_in_words() -> None:
    assert str(Interval(1.4876, 1.5234, 1.5611)) == "1.52 [1.49, 1.56]"


def test_an_interval_is_worked_out_once() -> None:
    """A bootstrap of a thousand rounds takes tens of milliseconds, and every view asks for the same ones."""
    samples = [1.0, 2.0, 3.0, 4.0]
    assert median_interval(samples) is median_interval(list(samples))


@pytest.mark.parametrize("count", range(6, 10))
def test_few_samples_cover_the_truth_as_well_however_they_are_distributed(count: int) -> None:
    draws = np.random.default_rng(count).standard_t(1.5, (500, count))
    found = [median_interval((100 + draw).tolist()) for draw in draws]
    assert sum(interval.low <= 100 <= interval.high for interval in found) >= 0.93 * len(found)


def test_which_samples_the_ends_of_few_are() -> None:
    ends = {count: median_interval(list(map(float, range(1, count + 1)))) for count in (5, 8, 9)}
    assert {count: (found.low, found.high) for count, found in ends.items()} == {
        5: (1.0, 5.0),
        8: (1.0, 8.0),
        9: (2.0, 8.0),
    }
