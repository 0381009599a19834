"""Two sides timed in alternation: their order, their length, and the number of calls in a block."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from torchwise.measure import paired_timing, quality
from torchwise.measure.clock import Clock, Reading
from torchwise.measure.paired_timing import (
    MAX_CALIBRATION_CALLS,
    MAX_ROUNDS,
    MIN_ROUND_S,
    MIN_ROUNDS,
    STOPPING_ROUNDS,
    Mix,
    Precision,
    _repeats,
    measure_pair,
)
from torchwise.measure.quality import Watch
from torchwise.records import Measurement, codec
from torchwise.records.measurement import Throttling


class Steady(Clock):
    """A clock on which a call takes as many seconds as it returns."""

    def __init__(self, device: str = "cpu", *, each: bool = True) -> None:
        super().__init__(device, each)
        object.__setattr__(self, "log", [])

    def time(self, call: Callable[[], Any], calls: int) -> Reading:
        self.log.append((call(), calls))  # type: ignore[attr-defined]
        return Reading(call(), None)


@pytest.mark.parametrize(
    ("device", "each", "seconds", "calls"),
    [
        ("cpu", True, 1e-4, 20),  # long enough for the clock
        ("cpu", True, 1.0, 1),
        ("cpu", False, 0.01, 1),  # nothing is queued there
        ("cuda", True, 0.01, 1),
        ("cuda", False, 0.004, 20),  # enough that the host runs ahead
        ("cuda", False, 0.05, 2),
        ("cuda", False, 2.0, 1),
        ("cuda", False, 1e-6, 2000),
    ],
)
def test_calls_to_a_block(device: str, each: bool, seconds: float, calls: int) -> None:
    side = Mix((lambda: seconds,), (1.0,))
    assert _repeats((side, side), Steady(device, each=each), MIN_ROUND_S) == {id(side): [calls]}


class Warming(Steady):
    """A clock of a device that was idle: its first calls take twenty times as long."""

    def time(self, call: Callable[[], Any], calls: int) -> Reading:
        cold = len(self.log) < 8  # type: ignore[attr-defined]
        return Reading(super().time(call, calls).wall_s * (20 if cold else 1), None)


def test_the_side_that_is_looked_at_first_has_as_many_calls_to_a_block() -> None:
    sides = [Mix((lambda: 1e-4,), (1.0,)) for _ in range(2)]
    assert list(_repeats(sides, Warming(), 0.01).values()) == [[100], [100]]


def test_short_calls_are_not_looked_at_for_as_long_as_a_block_lasts() -> None:
    side, clock = Mix((lambda: 1e-6,), (1.0,)), Steady()
    assert _repeats((side, side), clock, 1.0) == {id(side): [20_000]}
    assert len(clock.log) <= 4 * MAX_CALIBRATION_CALLS  # type: ignore[attr-defined]


def test_a_block_lasts_as_long_as_is_asked() -> None:
    sides = Mix((lambda: 1e-3,), (1.0,)), Mix((lambda: 2e-3,), (1.0,))
    clock = Steady()
    measure_pair(*sides, clock, Precision(block_s=0.02))
    assert {calls for _, calls in clock.log} == {1, 20, 10}  # type: ignore[attr-defined] # 1 to find the others


def test_the_order_swaps_from_round_to_round_and_tight_answers_end_it() -> None:
    clock = Steady()
    found = measure_pair(Mix((lambda: 0.5,), (1.0,)), Mix((lambda: 1.0,), (1.0,)), clock, Precision(0.02, 60.0))
    timed = [seconds for seconds, _ in clock.log[4:]]  # type: ignore[attr-defined] # 4 that found the calls to a block
    assert timed[:8] == [0.5, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5]
    assert len(found.candidate_s) == STOPPING_ROUNDS
    assert found.speedup.mid == 2.0


@pytest.mark.parametrize("rounds", [5, 13, 40])
def test_a_number_of_rounds_is_kept_however_tight_the_answer(rounds: int) -> None:
    sides = Mix((lambda: 0.5,), (1.0,)), Mix((lambda: 1.0,), (1.0,))
    found = measure_pair(*sides, Steady(), Precision(0.02, 0.0, rounds=rounds))
    assert len(found.candidate_s) == rounds
    assert measure_pair(*sides, Steady(), Precision(0.02, 0.0, rounds=rounds), prune_below=3.0).pruned is (rounds > 12)


class Noisy(Clock):
    """A clock on which the same work takes varying times, and longer after a look at the interval."""

    def __init__(self) -> None:
        super().__init__("cpu")
        object.__setattr__(self, "chance", random.Random(0))
        object.__setattr__(self, "cold", False)

    def time(self, call: Callable[[], Any], calls: int) -> Reading:
        seconds = self.chance.gauss(1.0, 0.01) * (1.1 if self.cold else 1.0)  # type: ignore[attr-defined]
        object.__setattr__(self, "cold", False)
        return Reading(seconds, None)


def test_a_look_at_the_interval_holds_up_both_sides_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, record = Noisy(), paired_timing._record

    def record_cold(rounds: list[tuple[Reading, Reading]], calls: int) -> Measurement:
        object.__setattr__(clock, "cold", True)
        return record(rounds, calls)

    monkeypatch.setattr(paired_timing, "_record", record_cold)
    sides = [Mix((lambda: None,), (1.0,)) for _ in range(2)]
    found = measure_pair(*sides, clock, Precision(1e-6, 60.0))
    assert len(found.candidate_s) == MAX_ROUNDS
    assert found.speedup.mid == pytest.approx(1.0, abs=0.002)


def test_what_can_no_longer_lead_is_stopped() -> None:
    sides = Mix((lambda: 1.0,), (1.0,)), Mix((lambda: 1.0,), (1.0,))
    assert measure_pair(*sides, Steady(), Precision(), prune_below=1.5).pruned
    assert not measure_pair(*sides, Steady(), Precision(), prune_below=0.5).pruned


@pytest.mark.parametrize(("slow", "speedup", "measured"), [(1, 0.5, 2), (2, 0.5, 3), (9, 2.0, 3)])
def test_what_held_up_the_baseline_alone_does_not_count(
    slow: int, speedup: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan takes twice as long as eager. While another program slows eager, the plan seems to be twice as fast."""
    begun: list[float] = []
    monkeypatch.setattr(paired_timing, "Watch", lambda device: begun.append(0.0) or Watch(device))
    monkeypatch.setattr(paired_timing, "PAUSE_S", 0.0)
    eager = Mix((lambda: 4.0 if len(begun) <= slow else 1.0,), (1.0,))
    found = measure_pair(Mix((lambda: 2.0,), (1.0,)), eager, Steady(), Precision(), expected_s=(None, 1.0))
    assert found.speedup.mid == speedup
    assert len(begun) == measured
    assert any(note.startswith("eager took 4.0 times as long") for note in found.notes) is (speedup > 1)
    assert any(f"measured {measured} times, as at first eager took 4.0 times" in note for note in found.notes)


def test_the_pause_before_another_measurement_is_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(paired_timing.time, "sleep", slept.append)
    sides = Mix((lambda: 2.0,), (1.0,)), Mix((lambda: 4.0,), (1.0,))
    for budget_s in (0.5, 60.0):
        measure_pair(*sides, Steady(), Precision(budget_s=budget_s), expected_s=(None, 1.0))
    assert set(slept) == {0.5, 1.0}


def test_a_baseline_that_takes_its_usual_time_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(paired_timing, "Watch", lambda device: begun.append(0.0) or Watch(device))
    for expected_s in (0.9, 5.0, None):
        sides = Mix((lambda: 2.0,), (1.0,)), Mix((lambda: 1.0,), (1.0,))
        measure_pair(*sides, Steady(), Precision(), expected_s=(None, expected_s))
    assert len(begun) == 3


def test_what_held_up_the_candidate_alone_counts_where_its_usual_time_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(paired_timing, "Watch", lambda device: begun.append(0.0) or Watch(device))
    monkeypatch.setattr(paired_timing, "PAUSE_S", 0.0)
    candidate = Mix((lambda: 8.0 if len(begun) <= 1 else 2.0,), (1.0,))
    found = measure_pair(candidate, Mix((lambda: 1.0,), (1.0,)), Steady(), Precision(), expected_s=(2.0, 1.0))
    assert (found.speedup.mid, len(begun)) == (0.5, 2)
    assert [note for note in found.notes if "slowed it down" in note] == [
        "measured 2 times, as at first one of the two took 4.0 times as long as before: something slowed it down"
    ]


def test_times_that_tell_no_ratio_are_measured_again_while_the_budget_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(paired_timing, "Watch", lambda device: begun.append(0.0) or Watch(device))
    monkeypatch.setattr(paired_timing, "PAUSE_S", 0.0)
    wild = itertools.cycle((1.0, 1.0, 9.0, 9.0))
    candidate = Mix((lambda: next(wild) if len(begun) == 1 else 1.0,), (1.0,))
    eager = Mix((lambda: 2.0,), (1.0,))
    found = measure_pair(candidate, eager, Steady(), Precision())
    assert (found.speedup.mid, len(begun)) == (2.0, 2), "the quieter one is kept"
    assert "measured 2 times, as at first the times were too far apart to tell a ratio" in found.notes
    begun.clear()
    found = measure_pair(candidate, eager, Steady(), Precision(budget_s=0.0))
    assert len(begun) == 1, "no time is left"
    assert "the times were too far apart to tell a ratio" in found.notes


@pytest.mark.parametrize(
    ("eager", "said"),
    [
        ((1.0,) * 3 + (1.2,) * 3 + (1.4,) * 3, ["eager drifted by +40% from the first rounds to the last"]),
        (
            (1.0,) * 5 + (364.13,) * 4,
            ["took over 364 times as long as another", "364 times as long in the last rounds"],
        ),
        (
            (364.13,) * 4 + (1.0,) * 5,
            ["took over 364 times as long as another", "364 times as long in the first rounds"],
        ),
    ],
)
def test_what_is_beyond_tenfold_is_no_percentage(eager: tuple[float, ...], said: list[str]) -> None:
    notes = Watch("cpu").judge(Measurement((1.0,) * 9, eager), 0.02).notes
    for text in said:
        assert any(text in note for note in notes), notes
    if len(said) > 1:
        assert sum("too busy to time" in note for note in notes) == 2
        assert not any(re.search(r"\d{4}", note) for note in notes), notes


def driver(monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """Have the driver answer requests for clocks with these rows, one after the other, and know no programs."""
    told = iter(rows)
    monkeypatch.setattr(
        quality,
        "query_gpu",
        lambda fields, table="gpu": [] if table != "gpu" else [cell.split(", ") for cell in [next(told)]],
    )


def test_a_measurement_knows_its_gpu_s_clocks_and_what_held_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = "Not Active, Not Active, Not Active, Not Active"
    driver(monkeypatch, f"1980, {calm}, Active", f"1410, {calm.replace('Not Active', 'Active', 1)}, Not Active")
    found = Watch("cuda").judge(Measurement((1.0,) * 9, (1.0,) * 9), 0.02)
    assert found.sm_clock_mhz == (1410, 1980)
    assert found.throttling == (Throttling.HARDWARE, Throttling.POWER_CAP)
    assert "the GPU was throttling (hardware slow-down): its clock was 1410 to 1980 MHz" in found.notes
    assert codec.from_json(codec.to_json(found), Measurement) == found


def test_a_power_cap_alone_is_no_reason_to_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, *["1755, Not Active, Not Active, Not Active, Not Active, Active"] * 2)
    found = Watch("cuda").judge(Measurement((1.0,) * 9, (1.0,) * 9), 0.02)
    assert (found.sm_clock_mhz, found.throttling) == ((1755, 1755), (Throttling.POWER_CAP,))
    assert not any("throttling" in note for note in found.notes)


@pytest.mark.parametrize("answer", ["[N/A], [N/A], [N/A], [N/A], [N/A], [N/A]", "Field is unknown"])
def test_a_driver_that_does_not_say_is_no_error(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    driver(monkeypatch, answer, answer)
    found = Watch("cuda").judge(Measurement((1.0,) * 9, (1.0,) * 9), 0.02)
    assert (found.sm_clock_mhz, found.throttling) == ((), ())


def test_examples_count_by_their_weight() -> None:
    mixed = Mix((lambda: 1.0, lambda: 3.0), (0.75, 0.25))
    found = measure_pair(mixed, mixed, Steady(), Precision())
    assert set(found.candidate_s) == {1.5}


def test_a_slow_call_is_timed_often_enough_for_an_interval_whatever_the_budget() -> None:
    mix = Mix((lambda: 1.0,), (1.0,))
    assert len(measure_pair(mix, mix, Steady(), Precision(budget_s=1e-9)).candidate_s) == MIN_ROUNDS
