"""Which sizes are padded to, and whether padding is chosen at all: pure arithmetic on sizes that were seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from torchwise.errors import InputError
from torchwise.runtime.bucketing import buckets_for, choose, padded_share
from torchwise.runtime.bucketing.buckets import MAX_DISTINCT


def cost_of(histogram: dict[int, float], buckets: Sequence[int]) -> float:
    return sum(weight * min(b for b in buckets if b >= size) for size, weight in histogram.items())


@pytest.mark.parametrize("seed", range(20))
def test_no_other_buckets_cost_less(seed: int) -> None:
    drawn = random.Random(seed)
    histogram = {drawn.randint(1, 60): drawn.choice([1.0, 2.5, 40.0]) for _ in range(9)}
    count = drawn.randint(1, 4)
    found = buckets_for(histogram, count)
    others = itertools.combinations(sorted(histogram), min(count, len(histogram)))
    assert cost_of(histogram, found) == min(cost_of(histogram, b) for b in others if b[-1] == max(histogram))


def test_a_measured_cost_decides() -> None:
    steps = {1: 1.0, 2: 1.0, 3: 1.0, 4: 9.0}  # up to 3 costs the same: padding 1 and 2 to 3 is free
    assert buckets_for([1, 2, 3, 4], 2, cost=steps.__getitem__) == (3, 4)
    assert buckets_for({1: 100, 2: 1, 3: 1, 4: 1}, 2) == (1, 4)


def test_as_many_sizes_as_buckets_are_kept_as_they_are() -> None:
    assert buckets_for([7, 3, 3], 8) == (3, 7)


def test_many_sizes_take_no_time_and_all_are_held() -> None:
    histogram = {size: 1.0 / size for size in range(1, 3 * MAX_DISTINCT)}
    found = buckets_for(histogram, 4)
    assert len(found) == 4
    assert found[-1] == max(histogram)
    assert padded_share(histogram, found) < padded_share(histogram, (found[-1] // 4, found[-1] // 2, found[-1]))


@pytest.mark.parametrize(
    ("sizes", "count", "said"),
    [
        ({}, 2, "sizes is empty"),
        ([0], 2, "a size is 0, but must be a whole number of at least 1"),
        ([True], 2, "a size is True"),
        ({3: -1.0}, 2, "the weight of size 3 is -1.0, but must be above 0"),
        ({3: float("nan")}, 2, "is nan"),
        ([3], 0, "count is 0, but must be a whole number of at least 1"),
    ],
)
def test_what_are_no_sizes_is_refused(sizes: object, count: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        buckets_for(sizes, count)  # type: ignore[arg-type]


def test_the_share_of_padding() -> None:
    assert padded_share([1, 3, 4], (4,)) == pytest.approx(4 / 12)
    assert padded_share({4: 1.0, 9: 5.0}, (4,)) == 0  # larger sizes are not padded


def test_a_few_sizes_are_served_as_they_are() -> None:
    choice = choose({32: 600, 64: 390, **{100 + i: 1 for i in range(9)}}, verified=True, count=3)
    assert (choice.kind, choice.sizes) == ("static", (32, 64, 100))
    assert "99.2% of the calls" in choice.reason


def test_many_sizes_are_padded_where_that_is_proven_and_little_is_padding() -> None:
    choice = choose(range(1, 101), verified=True)
    assert choice.kind == "buckets"
    assert len(choice.sizes) == 8
    assert choice.sizes == buckets_for(range(1, 101))
    assert choose(range(1, 101), verified=True, most=50).sizes[-1] == 50
    assert choose(range(1, 101), verified=True, least=50, count=51).sizes == tuple(range(50, 101))


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_number_of_sizes_that_is_none_is_refused_whatever_is_chosen(count: int) -> None:
    with pytest.raises(InputError, match=f"count is {count}, but must be a whole number of at least 1"):
        choose(range(1, 101), verified=False, count=count)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"proven": False}, "no rule for padding is verified"),
        ({"proven": True, "count": 1}, "of the work is padding, which is more than 25%"),
        ({"proven": True, "most": 0}, "padding reaches 0%"),
        ({"proven": True, "most": 49}, "padding reaches 49%"),
        ({"proven": True, "least": 52}, "padding reaches 49%"),
    ],
)
def test_otherwise_one_plan_serves_every_size(options: dict[str, object], said: str) -> None:
    choice = choose(range(1, 101), **options)  # type: ignore[arg-type]
    assert (choice.kind, choice.sizes) == ("dynamic", (10, 50, 90))
    assert said in choice.reason
