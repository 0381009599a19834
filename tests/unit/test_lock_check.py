"""A check, with a worker that answers from a table: stale, wrong, lost, slower, not checked, and its exit code."""

from __future__ import annotations

import io
import math
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lock_samples import EAGER_S, FAR, HERE, INDUCTOR, TARGET, Worker, an_entry, make_measurement
from rich.console import Console

from torchwise.errors import BaselineError, InputError, TargetError
from torchwise.plan import EAGER, Plan
from torchwise.records import Check as VerdictCheck
from torchwise.records import Failure, FailureKind, Interval, Measurement, Outcome, Verdict, codec
from torchwise.records.answer import Answer
from torchwise.records.listener import Listener
from torchwise.records.statistics import median_interval, ratio_of
from torchwise.study.lock import Entry, Lock
from torchwise.study.lock import slowdown_test as judging
from torchwise.study.lock.check import CheckRequest, run_check
from torchwise.study.lock.check_results import Check, Checked, State, render_check, sentence
from torchwise.study.lock.slowdown_test import Judge
from torchwise.trial import Job, Launcher
from torchwise.trial.full_graph import FullGraph, FullGraphJob

WRONG = Verdict((VerdictCheck("values", Outcome.FAIL, "output[0] is off by 0.3", error=0.3, floor=1e-7),))
UNCLEAR = Verdict((VerdictCheck("values", Outcome.NOT_COMPARABLE, "eager disagrees with itself"),))


def run_lock_check(worker: Launcher, *entries: Entry, **options: object) -> Check:
    lock = Lock().with_entries(entries or (an_entry(),))
    return run_check(lock, CheckRequest(**options), worker, Listener())  # type: ignore[arg-type]


def only(check: Check) -> Checked:
    (row,) = check.rows
    return row


# Fresh, right and as fast.


def test_a_plan_that_is_as_it_was_is_good() -> None:
    worker = Worker(make_measurement(2.0))
    check = run_lock_check(worker)
    assert only(check).state is State.GOOD
    assert only(check).detail.startswith("up to date and correct; its speed-up over eager changed by 1.00× [")
    assert (check.exit_code, worker.tasks) == (0, ["inspect", "try"])


def test_the_plan_and_what_the_inspection_found_are_what_is_tried() -> None:
    worker = Worker(make_measurement(2.0), traits=frozenset({"stochastic"}))
    run_lock_check(worker, an_entry(calls=7, seed=3))
    job = worker.ran[1]
    assert (job.plan, job.traits, job.workload.seed, job.prune_below) == (INDUCTOR, {"stochastic"}, 3, None)
    assert job.cache_dir


def test_eager_is_looked_at_and_not_tried() -> None:
    worker = Worker()
    assert only(run_lock_check(worker, an_entry(plan=EAGER))).state is State.GOOD
    assert worker.tasks == ["inspect"]


def test_without_timing_a_plan_is_proven_all_the_same() -> None:
    worker = Worker(make_measurement(0.1), WRONG)
    check = run_lock_check(worker, an_entry(), an_entry("b:c"), measure=False)
    assert [row.state for row in check.rows] == [State.GOOD, State.WRONG]
    assert [job.effort.measure_s for job in worker.ran] == [0.0] * 4
    assert check.rows[0].detail == "up to date and correct (1 checks passed); not timed"


@pytest.mark.parametrize("plan", [INDUCTOR, EAGER], ids=str)
def test_a_graph_that_breaks_fails_the_check_if_asked(plan: Plan) -> None:
    class Gate(Worker):
        def run(self, job: Any, limits: Any, on_stage: object) -> str | Failure:
            if isinstance(job, FullGraphJob):
                return codec.to_json(FullGraph("print, at a.py:9"))
            return super().run(job, limits, on_stage)

    check = run_lock_check(Gate(), an_entry(plan=plan), fullgraph=True)
    assert (only(check).state, check.exit_code) == (State.BREAKS, 1)
    assert only(check).detail.startswith("the graph breaks: print, at a.py:9. ")
    assert run_lock_check(Gate(make_measurement(2.0)), an_entry(plan=plan)).exit_code == 0, "nothing asks for one graph"


# Stale.


@pytest.mark.parametrize(
    ("name", "value"), [("torch", "1.13.0"), ("python", "3.8.1"), ("triton", "1.0"), ("driver", "1.2")]
)
def test_other_software_is_stale_and_nothing_is_run(name: str, value: str) -> None:
    worker = Worker()
    check = run_lock_check(worker, an_entry(here=replace(HERE, **{name: value})))
    assert only(check).state is State.STALE
    assert only(check).detail == f"{name}: {value} there, {getattr(HERE, name)} here"
    assert (check.exit_code, worker.ran) == (1, [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"structure": "other"}, "the model's code"),
        ({"inputs": ("float32[9]",)}, r"the inputs differ: [0][0] float32[8, 16] (16, 1) locked, float32[9] here"),
        ({"identity": "other"}, "the weights of the example inputs changed"),
    ],
)
def test_another_model_or_other_inputs_are_stale_and_not_tried(changes: dict[str, object], why: str) -> None:
    worker = Worker(**changes)
    check = run_lock_check(worker)
    assert only(check).state is State.STALE
    assert why in only(check).detail
    assert (check.exit_code, worker.tasks) == (1, ["inspect"])


def test_a_stale_eager_is_stale() -> None:
    assert only(run_lock_check(Worker(structure="other"), an_entry(plan=EAGER))).state is State.STALE


# Wrong and lost.


@pytest.mark.parametrize(("verdict", "why"), [(WRONG, "values: output[0] is off by 0.3"), (UNCLEAR, "disagrees")])
def test_what_is_not_proven_is_wrong(verdict: Verdict, why: str) -> None:
    check = run_lock_check(Worker(verdict))
    assert only(check).state is State.WRONG
    assert why in only(check).detail
    assert check.exit_code == 1


@pytest.mark.parametrize("kind", FailureKind)
def test_a_plan_that_no_longer_runs_is_lost(kind: FailureKind) -> None:
    check = run_lock_check(Worker(Failure(kind, "compile", "SIGSEGV")))
    assert only(check).state is State.LOST
    assert only(check).detail == f"{kind} in compile: SIGSEGV"
    assert check.exit_code == 1


# Slower.


def test_slower_beside_eager_and_by_itself_twice_is_slower() -> None:
    worker = Worker(make_measurement(1.5), make_measurement(1.4))
    check = run_lock_check(worker)
    row = only(check)
    assert row.state is State.SLOWER
    assert row.found is not None
    assert row.found.mid == pytest.approx(1.4)
    assert row.speedup is not None
    assert row.speedup.low < 0.7 < row.speedup.high < 0.71
    assert row.time is not None
    assert row.time.low < 1 / 0.7 < row.time.high
    assert "1.40× [" in row.detail
    assert "2.00× [" in row.detail
    assert (check.exit_code, worker.tasks) == (1, ["inspect", "try"] * 2)


def test_slower_once_is_not_slower() -> None:
    check = run_lock_check(Worker(make_measurement(1.5), make_measurement(2.0)))
    assert (only(check).state, check.exit_code) == (State.GOOD, 0)


def test_what_the_second_look_finds_counts() -> None:
    assert only(run_lock_check(Worker(make_measurement(1.5), WRONG))).state is State.WRONG


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (make_measurement(2.0, 1.4 * EAGER_S), State.GOOD),  # a slower machine slows both
        (
            make_measurement(2.0, 61 * EAGER_S),
            State.INCONCLUSIVE,
        ),  # something holds eager up, so their ratio tells nothing
        (make_measurement(1.5, 0.75 * EAGER_S), State.GOOD),  # eager became faster, the plan did not become slower
        (make_measurement(0.9, 0.45 * EAGER_S), State.SLOWER),  # eager has overtaken the plan
        (make_measurement(1.93), State.GOOD),  # within the threshold
        (make_measurement(1.5, noise=0.4), State.INCONCLUSIVE),  # within the noise
        (make_measurement(4.0), State.GOOD),
    ],
)
def test_what_is_slower_and_what_is_not(now: Measurement, state: State) -> None:
    assert only(run_lock_check(Worker(now, now))).state is state


def test_a_plan_that_never_was_faster_is_not_overtaken() -> None:
    judged = Judge(1).compare(an_entry(speedup=0.8), make_measurement(0.8))
    assert judged.slower is Answer.NO


def test_a_wider_threshold_lets_more_pass() -> None:
    assert only(run_lock_check(Worker(make_measurement(1.5)), threshold=0.5)).state is State.GOOD


def test_without_a_locked_time_the_speedup_alone_counts() -> None:
    assert Judge(1).compare(replace(an_entry(), plan_s=None), make_measurement(1.5, 0.5 * EAGER_S)).slower is Answer.YES


def test_more_plans_make_wider_intervals() -> None:
    one, many = (Judge(count).compare(an_entry(), make_measurement(1.5)).speedup for count in (1, 100))
    assert many.low < one.low < one.high < many.high
    assert Judge(4).confidence == pytest.approx(1 - 0.05 / 4)


def test_the_check_counts_the_plans_that_it_timed() -> None:
    check = run_lock_check(
        Worker(make_measurement(2.0), make_measurement(2.0)), an_entry(), an_entry("b:c"), an_entry("e:f", plan=EAGER)
    )
    assert check.confidence == pytest.approx(1 - 0.05 / 2)


# The ratio of intervals.


def test_a_ratio_of_exact_values_is_exact() -> None:
    assert ratio_of(Interval(3, 3, 3), Interval(2, 2, 2)) == Interval(1.5, 1.5, 1.5)


def test_the_ratio_is_as_wide_as_that_of_the_samples() -> None:
    rng = np.random.default_rng(1)
    a, b = 1.5 * rng.lognormal(0, 0.1, 200), rng.lognormal(0, 0.1, 200)
    medians = [np.median(rng.choice(side, (20_000, 200)), axis=1) for side in (a, b)]
    for confidence in (0.95, 0.999):
        found = ratio_of(median_interval(a), median_interval(b), confidence)
        low, high = np.quantile(medians[0] / medians[1], ((1 - confidence) / 2, (1 + confidence) / 2))
        assert found.mid == pytest.approx(np.median(a) / np.median(b))
        assert math.log(found.high / found.low) == pytest.approx(math.log(high / low), rel=0.25)


def test_the_ratio_holds_the_true_one_about_95_times_in_100() -> None:
    rng = np.random.default_rng(2)
    pairs = [(1.25 * rng.lognormal(0, 0.2, 30), rng.lognormal(0, 0.2, 30)) for _ in range(200)]
    found = [ratio_of(median_interval(a), median_interval(b)) for a, b in pairs]
    assert np.mean([interval.low <= 1.25 <= interval.high for interval in found]) >= 0.9


# Other hardware, and targets that cannot be checked.


def test_a_section_of_other_hardware_is_listed_and_not_run() -> None:
    worker = Worker(make_measurement(2.0))
    check = run_lock_check(worker, an_entry(), an_entry(here=FAR))
    assert {row.hardware: row.state for row in check.rows} == {
        an_entry().hardware: State.GOOD,
        an_entry(here=FAR).hardware: State.ELSEWHERE,
    }
    assert (check.exit_code, len(worker.ran)) == (0, 2)


def test_a_section_made_under_another_limit_on_the_cpus_is_one_of_other_hardware() -> None:
    limited, unknown = replace(HERE, cores_allowed=HERE.cpus / 4), replace(HERE, cores_allowed=None)
    worker = Worker(make_measurement(2.0), make_measurement(2.0))
    check = run_lock_check(worker, an_entry(here=limited), an_entry("b:c", here=unknown), an_entry("d:e"))
    assert {row.target: row.state for row in check.rows} == {
        TARGET: State.ELSEWHERE,
        "b:c": State.GOOD,  # of a version that kept no limit
        "d:e": State.GOOD,
    }


def test_where_nothing_is_for_this_machine_nothing_was_checked() -> None:
    check = run_lock_check(Worker(), an_entry(here=FAR))
    assert check.exit_code == 2
    assert sentence(check).endswith("torchwise tune TARGET && torchwise lock TARGET.")


def test_a_named_target_without_a_section_here_is_not_checked() -> None:
    check = run_lock_check(
        Worker(make_measurement(2.0)), an_entry(), an_entry("b:c", here=FAR), targets=(TARGET, "b:c")
    )
    missing = check.select_rows(State.UNKNOWN)[0]
    assert missing.way_out == "torchwise tune b:c && torchwise lock b:c"
    assert check.exit_code == 2


def test_only_what_is_named_is_checked() -> None:
    worker = Worker(make_measurement(2.0))
    check = run_lock_check(worker, an_entry(), an_entry("b:c"), targets=("b:c", "b:c"))
    assert [row.target for row in check.rows] == ["b:c"]


def test_a_target_that_is_not_locked_is_refused() -> None:
    with pytest.raises(InputError, match="no section for 'nothing:here'"):
        run_lock_check(Worker(), targets=("nothing:here",))


class Refusing(Worker):
    def run(self, job: Job, *rest: object) -> str | Failure:
        if job.workload.target != "b:c":
            return super().run(job, *rest)  # type: ignore[arg-type]
        raise TargetError("there is no module 'b'")


def test_a_target_that_cannot_be_loaded_is_not_checked_and_the_others_are() -> None:
    check = run_lock_check(Refusing(make_measurement(2.0)), an_entry(), an_entry("b:c"))
    assert [row.state for row in check.rows] == [State.GOOD, State.UNKNOWN]
    assert check.rows[1].detail == "there is no module 'b'"
    assert check.exit_code == 2


def test_a_model_that_itself_fails_is_not_checked() -> None:
    class Failing(Worker):
        def run(self, *_arguments: object) -> str | Failure:
            raise BaselineError("the model raised ValueError: no")

    assert only(run_lock_check(Failing())).state is State.UNKNOWN


def test_a_regression_outweighs_what_was_not_checked() -> None:
    assert run_lock_check(Refusing(WRONG), an_entry(), an_entry("b:c")).exit_code == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"threshold": -0.1}, "threshold is -0.1, but must be at least 0"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"effort": "heroic"}, "effort is 'heroic', but must be one of quick, standard, thorough"),
        ({"limit_s": 0.0}, "limit is 0.0 s, but must be above 0"),
    ],
)
def test_a_request_that_means_nothing_is_refused(options: dict[str, float], why: str) -> None:
    with pytest.raises(InputError, match=why):
        CheckRequest(**options)  # type: ignore[arg-type]


# The report.


def test_what_to_type_is_what_was_asked_before_and_anew_where_nothing_changed() -> None:
    entry = an_entry("odd name.py:make", calls=5, memory_limit=3 * 2**29, objective="throughput")
    words = shlex.split(
        only(run_lock_check(Worker(structure="other"), replace(entry, allow="lower-precision"))).way_out
    )
    tune, lock = words[: words.index("&&")], words[words.index("&&") + 1 :]
    assert lock == ["torchwise", "lock", "odd name.py:make"]
    assert tune[:3] == ["torchwise", "tune", "odd name.py:make"]
    for option in (
        "--calls 5",
        "--allow lower-precision",
        "--memory-limit 1.5",
        "--objective throughput",
        "--device cpu",
    ):
        assert option in " ".join(tune)
    assert "--fresh" not in tune
    assert "--fresh" in only(run_lock_check(Worker(WRONG))).way_out


def test_every_state_is_shown_under_its_heading_and_counted() -> None:
    noisy = replace(make_measurement(1.5), notes=("the machine is noisy",))
    rows = (
        *run_lock_check(Worker(noisy, noisy)).rows,
        *(Checked("a:b", "inference", "CPU", state, f"because {state}") for state in State),
    )
    out = io.StringIO()
    Console(file=out, width=80).print(render_check(Check(rows, 0.05, 0.95)), soft_wrap=True)
    text = out.getvalue()
    for state in State:
        assert f"  a:b (inference on CPU): because {state}\n" in text
    assert "note:" not in text
    assert "\n    torchwise tune app.py:make --device cpu --fresh && " in text
    counts = (
        "1 stale, 1 wrong, 1 lost, 2 slower, 1 graph breaks, 1 inconclusive, 1 not checked, 1 faster, 1 good, "
        "1 other hardware"
    )
    assert text.splitlines()[-1] == f"The lock is not valid on this machine: {counts}."


def test_as_json_a_check_is_read_again() -> None:
    check = run_lock_check(Worker(make_measurement(1.5), make_measurement(1.5)))
    assert Check.from_json(check.to_json()) == check


def test_the_command_has_the_limits_of_the_check() -> None:
    from torchwise.cli.lock import LIMIT_S
    from torchwise.study.lock import check as checking

    assert LIMIT_S == checking.LIMIT_S
    assert judging.THRESHOLD == 0.05
