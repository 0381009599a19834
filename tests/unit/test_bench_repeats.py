"""Rows that may be the fastest are timed in more processes, and their interval includes them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from bench_samples import HANG, Heard, Workers, a_benchmark, a_performance, a_row, a_spec, ours
from builders import EAGER_S, WRONG, a_measurement, samples
from torchwise.bench import BenchRequest, run_benchmark
from torchwise.bench.run import next_duel, next_repeat
from torchwise.plan import EAGER
from torchwise.plan.effort import EFFORTS
from torchwise.records import Measurement
from torchwise.records.answer import Answer, Reliability
from torchwise.records.benchmark import Benchmark, Performance, Row, RowState
from torchwise.records.comparison import compare
from torchwise.records.scale import Scale, scale_of, trust_of

TARGET = "zoo:tutorial.fusion_demo@small"
QUICK, STANDARD = EFFORTS["quick"], EFFORTS["standard"]
ALL = ("eager", "default", "reduce-overhead", "max-autotune", "torchwise")


def the_scale(*rows: Row) -> Scale:
    return scale_of(a_benchmark(rows), a_spec())


def make_measurements(*speedups: float) -> tuple[Measurement, ...]:
    return tuple(a_measurement(speedup, seed=10 * number) for number, speedup in enumerate(speedups))


def make_repeated_row(contender: str, *speedups: float, **changes: Any) -> Row:
    first, *more = make_measurements(*speedups)
    return a_row(contender, measurement=first, repeats=tuple(more), **changes)


def alone(speedup: float, **changes: Any) -> Performance:
    """Return the findings of a single worker."""
    return a_performance(speedup, repeats=(), **changes)


def make_duel_row(duel: float, speedup: float = 1.7, **changes: Any) -> Row:
    """Return the row of Torchwise with one duel."""
    return ours(speedup, duel, duel_repeats=(), **changes)


def get_contender(row: Row | None) -> str | None:
    return row.contender if row else None


def test_a_row_that_leads_by_far_has_a_second_process_and_no_more() -> None:
    behind = make_repeated_row("default", 1.2)
    assert (
        get_contender(next_repeat(the_scale(make_repeated_row("max-autotune", 3.0), behind), STANDARD, ALL))
        == "max-autotune"
    )
    twice = make_repeated_row("max-autotune", 3.0, 3.02)
    assert next_repeat(the_scale(twice, behind), STANDARD, ALL) is None


def test_rows_that_may_each_be_the_fastest_take_turns_until_it_is_told() -> None:
    first, second = make_repeated_row("default", 1.50, 1.51), make_repeated_row("max-autotune", 1.49)
    assert get_contender(next_repeat(the_scale(first, second), STANDARD, ALL)) == "max-autotune"
    second = make_repeated_row("max-autotune", 1.49, 1.52, 1.50)
    assert get_contender(next_repeat(the_scale(first, second), STANDARD, ALL)) == "default"
    spread = [1.4, 1.5, 1.6, 1.45, 1.55]
    full = [make_repeated_row(name, *spread) for name in ("default", "max-autotune")]
    assert next_repeat(the_scale(*full), STANDARD, ALL) is None, "each had all that the effort allows"
    narrow = [make_repeated_row(name, *[1.5] * 5) for name in ("default", "max-autotune")]
    assert next_repeat(the_scale(*narrow), STANDARD, ALL) is None


def test_how_many_rows_may_be_close_is_bounded_by_the_effort() -> None:
    rows = [make_repeated_row(name, 1.5, 1.6, 1.4) for name in ("default", "reduce-overhead")]
    rows = [*rows, make_repeated_row("max-autotune", 1.48)]
    assert next_repeat(the_scale(*rows), QUICK, ALL) is None, "the leader and one more have had three"
    assert get_contender(next_repeat(the_scale(*rows), STANDARD, ALL)) == "max-autotune"


@pytest.mark.parametrize("change", [{"verdict": WRONG}, {"precision": "bf16"}])
def test_wrong_answers_and_other_classes_are_no_rivals(change: dict[str, Any]) -> None:
    leader, other = (
        make_repeated_row("default", 1.5, 1.5, 1.5, 1.5, 1.5),
        make_repeated_row("max-autotune", 1.5, **change),
    )
    found = next_repeat(the_scale(leader, other), STANDARD, ALL)
    assert get_contender(found) == ("max-autotune" if "precision" in change else None), (
        "its class has a leader of its own"
    )


def test_eager_and_what_cannot_be_run_again_have_no_more_processes() -> None:
    assert next_repeat(the_scale(a_row("eager", 1.0)), STANDARD, ALL) is None
    assert next_repeat(the_scale(make_duel_row(1.0, 1.0, repeats=(), plan=EAGER, rival="eager")), STANDARD, ALL) is None
    assert next_repeat(the_scale(make_repeated_row("default", 1.5)), STANDARD, ["eager"]) is None


def test_a_duel_is_held_again_until_its_order_is_plain() -> None:
    close, far = make_duel_row(1.02), make_duel_row(2.0)
    assert get_contender(next_duel(the_scale(close), STANDARD, ALL)) == "torchwise"
    assert get_contender(next_duel(the_scale(far), STANDARD, ALL)) == "torchwise"
    again = replace(far, duel_repeats=make_measurements(2.1))
    assert next_duel(the_scale(again), STANDARD, ALL) is None
    four = replace(close, duel_repeats=make_measurements(0.9, 1.1, 1.2))
    assert get_contender(next_duel(the_scale(four), STANDARD, ALL)) == "torchwise"
    assert (
        next_duel(the_scale(replace(four, duel_repeats=make_measurements(0.9, 1.1, 1.2, 0.95))), STANDARD, ALL) is None
    )
    assert next_duel(the_scale(close), STANDARD, ["eager"]) is None


def test_eager_beside_itself_is_no_duel_to_hold_again() -> None:
    stays = make_duel_row(1.0, 1.0, plan=EAGER, rival="eager")
    assert next_duel(the_scale(a_row("eager", 1.0), stays), STANDARD, ALL) is None


def test_processes_are_in_the_intervals_of_rows_and_duels() -> None:
    once, agreed = make_duel_row(1.1), replace(make_duel_row(1.1), duel_repeats=make_measurements(1.1, 1.1, 1.1, 1.1))
    contradicted = replace(once, duel_repeats=make_measurements(0.8))
    widths = [row.speed_over_rival.half_width for row in (agreed, once, contradicted) if row.speed_over_rival]
    assert widths == sorted(widths)
    assert widths[0] < 0.03 < 0.1 < widths[2]
    wide, narrow = make_repeated_row("default", 1.5, 1.2), make_repeated_row("default", *[1.5] * 5)
    assert wide.speedup
    assert narrow.speedup
    assert wide.speedup.mid == pytest.approx((1.5 * 1.2) ** 0.5, rel=0.01)
    assert wide.speedup.half_width > 5 * narrow.speedup.half_width


@pytest.mark.parametrize("noise", [0.02, 0.4])
def test_a_machine_was_disturbed_by_what_processes_saw_and_not_by_how_they_may_differ(noise: float) -> None:
    def make_timed_row(contender: str, speedup: float) -> Row:
        first, again = (
            replace(one, candidate_s=samples(EAGER_S / speedup, 30, noise=noise, seed=9 * place))
            for place, one in enumerate(a_measurement(1.0, 30, seed=number) for number in range(2))
        )
        return a_row(contender, measurement=first, repeats=(again,), workload=a_spec(device="cpu"))

    benchmark = a_benchmark(
        (make_timed_row("eager", 1.0), make_timed_row("default", 1.3), make_timed_row("max-autotune", 1.6))
    )
    told = {trust.reliability for trust in (trust_of(benchmark), compare(benchmark, benchmark).trust) if trust}
    assert (told == {Reliability.GOOD}) is (noise < 0.1)


def test_one_quiet_process_may_say_that_two_are_level_and_not_that_one_is_ahead() -> None:
    rows = [make_repeated_row("max-autotune", *[1.7] * 5)]
    level, ahead = make_duel_row(1.0), make_duel_row(1.04)
    assert the_scale(*rows, level).duel_answer(level) is Answer.NO
    assert the_scale(*rows, ahead).duel_answer(ahead) is Answer.INCONCLUSIVE
    told = replace(ahead, duel_repeats=make_measurements(1.04, 1.05, 1.04, 1.05))
    assert the_scale(*rows, told).duel_answer(told) is Answer.YES


# The loop.


def run(workers: Workers, *contenders: str, heard: Heard | None = None, **changes: Any) -> dict[str, Row]:
    request = BenchRequest((TARGET,), contenders, **{"effort": "quick", **changes})
    return {row.contender: row for row in run_benchmark(request, workers, heard or Heard()).rows}


def test_what_leads_is_timed_in_more_processes_and_rows_keep_their_order() -> None:
    workers = Workers(contends={"eager": alone(1.0), "default": alone(3.0), "max-autotune": alone(1.2)})
    heard = Heard()
    rows = run(workers, "eager", "default", "max-autotune", heard=heard, warm=False)
    assert list(rows) == ["eager", "default", "max-autotune"]
    counts = {name: len(row.performance.processes) for name, row in rows.items() if row.performance}
    assert counts == {"eager": 1, "default": 2, "max-autotune": 1}
    assert workers.jobs[-1] == f"warm {TARGET} default"
    assert rows["default"].performance
    assert rows["default"].performance.costs.warm_s == 4.1, "not that of the process that came after"
    assert heard.benchmark is not None
    assert tuple(heard.rows) == heard.benchmark.rows, "what was timed again was heard of, so that it is kept"


def test_a_warm_start_counts_as_another_process() -> None:
    rows = run(Workers(contends={"eager": alone(1.0), "default": alone(3.0)}), "eager", "default")
    assert [len(row.performance.processes) for row in rows.values() if row.performance] == [2, 2]


def test_the_duel_is_held_again_and_its_failure_ends_it_and_costs_nothing_else() -> None:
    class Failing(Workers):
        def _answer(self, job: Any) -> tuple[str, Any]:
            word, answer = super()._answer(job)
            return word, (HANG if word.startswith("duel") and any(w.startswith("duel") for w in self.jobs) else answer)

    contends = {"eager": alone(1.0), "default": alone(1.4), "torchwise": alone(1.45)}
    workers = Workers(contends=contends, duel=a_measurement(1.03))
    row = run(workers, "eager", "default", "torchwise")["torchwise"]
    assert len(row.duels) == 3
    row = run(Failing(contends=contends, duel=a_measurement(1.03)), "eager", "default", "torchwise")["torchwise"]
    assert (len(row.duels), row.state, row.is_right) == (1, RowState.TIMED, True)
    assert row.reason == f"against default in another process: {HANG}"


def test_a_duel_that_failed_before_is_not_forgotten_where_another_fails() -> None:
    class Failing(Workers):
        def _answer(self, job: Any) -> tuple[str, Any]:
            word, answer = super()._answer(job)
            is_first = word.endswith(" default") and word not in self.jobs
            return word, (HANG if word.startswith("duel") and not is_first else answer)

    quick, slow = alone(1.4, slowness=0.5), alone(1.5)  # one has the lesser time, and the other the higher speed-up
    contends = {"eager": alone(1.0), "default": quick, "max-autotune": slow, "torchwise": alone(1.45)}
    row = run(Failing(contends=contends), "eager", "default", "max-autotune", "torchwise")["torchwise"]
    assert row.reason == f"against max-autotune: {HANG}; against default in another process: {HANG}"


def test_a_contender_that_fails_in_another_process_is_no_right_answer() -> None:
    workers = Workers(contends={"default": alone(3.0)}, warm=HANG)
    rows = run(workers, "eager", "default", warm=False)
    assert (rows["default"].state, rows["default"].is_right) == (RowState.FAILED, False)
    assert rows["default"].reason == f"in another process: {HANG}"


def test_a_spent_budget_starts_no_further_process() -> None:
    contends = {"default": alone(3.0)}
    workers = Workers(contends=contends, after=lambda word: time.sleep(0.5 * (word == f"{TARGET} default")))
    rows = run(workers, "default", warm=False, budget_s=0.5)
    assert [len(row.performance.processes) for row in rows.values() if row.performance] == [1]


def test_a_benchmark_with_processes_is_read_as_it_was_written() -> None:
    told = replace(ours(duel=1.1), duel_repeats=make_measurements(1.1, 1.2))
    done = a_benchmark((make_repeated_row("default", 1.5, 1.4), told))
    assert Benchmark.from_json(done.to_json()).rows == done.rows
