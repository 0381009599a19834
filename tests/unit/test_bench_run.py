"""The loop of a benchmark, with workers that answer at once: a failing contender costs one row."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench_samples import CRASH, HANG, PEAKS, Heard, Workers, a_benchmark, a_performance, a_row, a_spec
from builders import PASSED, WRONG, a_measurement
from torchwise import environment
from torchwise.bench import BenchRequest, run_benchmark
from torchwise.bench import run as bench_run
from torchwise.bench.contenders import BUILT_IN, DEFAULT, load_contenders
from torchwise.bench.contenders.contender import Setting
from torchwise.bench.request import ContenderJob
from torchwise.errors import BaselineError, BudgetError, InputError, TargetError
from torchwise.plan import EAGER, Plan
from torchwise.plan.effort import EFFORTS
from torchwise.records import Costs, Outcome, codec
from torchwise.records.benchmark import Benchmark, Row, RowState
from torchwise.trial.job import Attempt, Restart

ONE, TWO = "zoo:tutorial.fusion_demo@small", "zoo:tutorial.branch@small"
THREE = ("eager", "default", "max-autotune")


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the steps after all rows of a target are done: `test_bench_repeats.py` has them."""
    monkeypatch.setattr(bench_run, "EFFORTS", {"quick": replace(EFFORTS["quick"], processes=1)})


def a_request(*targets: str, contenders: tuple[str, ...] = THREE, **changes: Any) -> BenchRequest:
    return BenchRequest(targets or (ONE,), contenders, **{"effort": "quick", **changes})


def run(workers: Workers, *targets: str, earlier: Benchmark | None = None, **changes: Any) -> dict[Any, Row]:
    """Return the rows by contender, or by target and contender if there are several targets."""
    done = run_benchmark(a_request(*targets, **changes), workers, Heard(), earlier)
    return {(row.workload.target, row.contender) if len(targets) > 1 else row.contender: row for row in done.rows}


def test_every_contender_is_run_on_every_target_and_heard_of() -> None:
    heard, workers = Heard(), Workers()
    done = run_benchmark(a_request(ONE, TWO), workers, heard)
    assert [(row.workload.target, row.contender) for row in done.rows] == [(t, c) for t in (ONE, TWO) for c in THREE]
    assert tuple(heard.rows) == done.rows
    assert heard.benchmark == done
    assert heard.targets == [(ONE, 1, 2), (TWO, 2, 2)]
    assert done.peaks == PEAKS
    assert workers.jobs[:3] == [f"inspect {ONE}", "survey", f"{ONE} eager"]
    assert workers.jobs.count("survey") == 1


@pytest.mark.parametrize("failure", [CRASH, HANG])
def test_a_contender_that_crashes_or_hangs_costs_one_row(failure) -> None:
    rows = run(Workers(contends={"default": failure}))
    assert [row.state for row in rows.values()] == [RowState.TIMED, RowState.FAILED, RowState.TIMED]
    assert rows["default"].failure == failure
    assert rows["default"].reason == str(failure)
    assert rows["default"].performance is None


def test_a_contender_that_answers_wrongly_is_timed_and_not_right() -> None:
    row = run(Workers(contends={"default": a_performance(verdict=WRONG)}))["default"]
    assert row.state is RowState.TIMED
    assert row.performance
    assert row.performance.verdict.outcome is Outcome.FAIL
    assert not row.is_right


def test_a_contender_that_is_missing_costs_one_row_and_no_worker() -> None:
    workers = Workers()
    rows = run(workers, contenders=("eager", "torch-tensorrt"))
    assert rows["torch-tensorrt"].state is RowState.MISSING
    assert rows["torch-tensorrt"].reason == "it is for cuda, and this is cpu"
    assert rows["eager"].state is RowState.TIMED
    assert not any("tensorrt" in job for job in workers.jobs)


def test_the_warm_start_is_measured_unless_it_is_not_wanted() -> None:
    def warm_s(row: Row) -> float | None:
        assert row.performance
        return row.performance.costs.warm_s

    assert warm_s(run(Workers(warm=7.5))["default"]) == 7.5
    cold = a_performance(costs=replace(a_performance().costs, warm_s=None))
    workers = Workers(contends={"default": cold})
    assert warm_s(run(workers, warm=False)["default"]) is None
    assert not any(job.startswith("warm") for job in workers.jobs)


def test_a_contender_that_does_not_start_warm_says_so() -> None:
    row = run(Workers(warm=HANG))["default"]
    assert row.state is RowState.FAILED
    assert row.reason == f"from warm caches: {HANG}"


@pytest.mark.parametrize("plain", [CRASH, BaselineError("it raises")])
def test_a_model_that_fails_costs_the_rows_of_its_target_alone(plain) -> None:
    rows = run(Workers(plain={ONE: plain}), ONE, TWO)
    assert not any(row.refused for row in rows.values())
    for contender in THREE:
        row = rows[ONE, contender]
        assert row.state is RowState.FAILED
        assert row.reason.startswith("the original model: ")
        assert rows[TWO, contender].state is RowState.TIMED


def test_a_target_that_cannot_be_used_is_refused_in_rows_of_its_own() -> None:
    rows = run(Workers(plain={ONE: TargetError("m.py has no 'f'")}), ONE, TWO)
    for contender in THREE:
        row = rows[ONE, contender]
        assert (row.state, row.reason, row.refused) == (RowState.FAILED, "m.py has no 'f'", True)
        assert rows[TWO, contender].state is RowState.TIMED


def test_the_hardware_is_not_measured_for_a_target_that_cannot_be_used() -> None:
    workers = Workers(plain={ONE: TargetError("there is none")})
    assert run_benchmark(a_request(), workers, Heard()).peaks is None
    assert workers.jobs == [f"inspect {ONE}"]


def test_a_target_that_was_refused_is_tried_again() -> None:
    earlier = run_benchmark(a_request(), Workers(plain={ONE: TargetError("there is none")}), Heard())
    done = run_benchmark(a_request(), Workers(), Heard(), earlier)
    assert [(row.contender, row.state, row.refused) for row in done.rows] == [(c, RowState.TIMED, False) for c in THREE]
    assert done.peaks == PEAKS


def test_what_is_done_is_not_run_again() -> None:
    first = Workers()
    earlier = run_benchmark(a_request(ONE), first, Heard())
    workers = Workers()
    done = run_benchmark(a_request(ONE, TWO), workers, Heard(), earlier)
    assert done.rows[: len(earlier.rows)] == earlier.rows
    assert len(done.rows) == 2 * len(THREE)
    assert not any(ONE in job for job in workers.jobs)
    assert "survey" not in workers.jobs
    more = Workers()
    run_benchmark(a_request(ONE, contenders=(*THREE, "reduce-overhead")), more, Heard(), earlier)
    assert [job for job in more.jobs if "inspect" not in job and "warm" not in job] == [f"{ONE} reduce-overhead"]


def test_failed_rows_are_done_too() -> None:
    earlier = run_benchmark(a_request(), Workers(contends={"default": HANG}), Heard())
    workers = Workers()
    assert run_benchmark(a_request(), workers, Heard(), earlier) == earlier
    assert workers.jobs == []


def test_another_environment_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"is from another environment \(.*results of different environments cannot be"
    ):
        run_benchmark(a_request(), Workers(), Heard(), a_benchmark())


def test_a_budget_that_is_spent_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("torchwise.bench.run.time.monotonic", lambda: now[0])

    def pass_time(job: str) -> None:
        now[0] += 10.0 if job == f"{ONE} default" else 0.0

    workers = Workers(after=pass_time)
    heard = Heard()
    done = run_benchmark(a_request(ONE, TWO, budget_s=5.0), workers, heard)
    assert [row.contender for row in done.rows] == ["eager", "default"]
    assert heard.targets == [(ONE, 1, 2)]
    monkeypatch.setattr("torchwise.bench.run.time.monotonic", time.monotonic)
    assert len(run_benchmark(a_request(ONE, TWO), workers, Heard(), done).rows) == 2 * len(THREE)


def test_a_row_that_the_budget_ends_is_left_open_and_done_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("torchwise.bench.run.time.monotonic", lambda: now[0])
    notes: list[str] = []

    def pass_time(job: str) -> None:
        now[0] += 10.0 if job == f"{ONE} default" else 0.0

    class Notes(Heard):
        def note(self, text: str) -> None:
            notes.append(text)

    workers = Workers(after=pass_time, contends={"default": HANG})
    done = run_benchmark(a_request(ONE, TWO, budget_s=5.0), workers, Notes())
    assert [row.contender for row in done.rows] == ["eager"]
    assert notes == [
        f"the budget of 5 s is spent, and default is not timed on {ONE}: it ended in stage 'compile'. Give a larger "
        "budget"
    ]
    assert len(run_benchmark(a_request(ONE), Workers(), Heard(), done).rows) == len(THREE)


def test_a_budget_that_ends_before_any_row_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("torchwise.bench.run.time.monotonic", lambda: now[0])

    class Profiles(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            now[0] += limits.end_s
            return HANG

    with pytest.raises(BudgetError, match="the budget of 5 s is spent, and no row is finished"):
        run_benchmark(a_request(ONE, TWO, budget_s=5.0), Profiles(), Heard())


def test_a_search_that_the_budget_ended_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("torchwise.bench.run.time.monotonic", lambda: now[0])

    def search(*_given: Any, **_named: Any) -> None:
        now[0] += 10.0

    monkeypatch.setattr("torchwise.bench.run.run_study", search)
    assert list(run(Workers(), contenders=("eager", "torchwise"), budget_s=5.0)) == ["eager"]


def test_hardware_that_cannot_be_measured_costs_only_the_roofline() -> None:
    workers = Workers(peaks=CRASH)
    done = run_benchmark(a_request(ONE, TWO), workers, Heard())
    assert done.peaks is None
    assert len(done.rows) == 2 * len(THREE)
    assert workers.jobs.count("survey") == 1


def test_ctrl_c_leaves_what_was_heard() -> None:
    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(a_request(), Workers(contends={"max-autotune": KeyboardInterrupt()}), heard)
    assert [row.contender for row in heard.rows] == ["eager", "default"]


@pytest.mark.parametrize("name", ["defualt", "nothing"])
def test_an_unknown_contender_is_refused_before_anything_is_run(name: str) -> None:
    workers = Workers()
    with pytest.raises(InputError, match=f"contender is '{name}'.* but there are eager, default, .* all"):
        run(workers, contenders=(name,))
    assert workers.jobs == []


def test_all_contenders_are_known_and_torchwise_comes_last() -> None:
    first, *_, last = load_contenders()
    assert (first, last) == ("eager", "torchwise")


def test_contenders_that_cannot_train_on_a_cpu_say_why() -> None:
    missing = {contender.name: contender.missing(Setting("cpu", "training")) for contender in BUILT_IN}
    said = {name: why for name, why in missing.items() if why is not None}
    assert {name: why for name, why in said.items() if "is not installed: pip install " not in why} == {
        "aot-inductor": "it is for inference, and this is training",
        "onnxruntime": "it is for inference, and this is training",
        "openvino": "it is for inference, and this is training",
        "torch-tensorrt": "it is for cuda, and this is cpu",
        "int8-dynamic": "int8-dynamic has no backward pass",
    }
    assert not said.keys() & set(DEFAULT)


# Torchwise, and its duel.

WITH_OURS = (*THREE, "torchwise")


def test_torchwise_searches_is_run_by_its_decision_and_meets_the_fastest_right_rival() -> None:
    contends = {
        "eager": a_performance(1.0),
        "default": a_performance(3.0, verdict=WRONG),
        "max-autotune": a_performance(1.4),
        "torchwise": a_performance(1.7),
    }
    workers = Workers(contends=contends)
    row = run(workers, contenders=WITH_OURS)["torchwise"]
    assert row.rival == "max-autotune"
    assert row.duel == workers.duel
    assert row.plan is not None
    assert row.precision == row.plan.precision == "native"
    assert row.search_s is not None
    assert row.search_s > 0
    assert workers.jobs[-1] == f"duel {ONE} torchwise max-autotune"


def test_each_step_of_torchwise_is_told() -> None:
    heard = Heard()
    done = run_benchmark(a_request(ONE, contenders=WITH_OURS), Workers(), heard)
    row = next(row for row in done.rows if row.contender == "torchwise")
    *tried, decided, beside = heard.steps
    assert tried[0].startswith("torchwise: trial 0: ")
    assert decided == f"torchwise: {row.plan}, with its checks"
    assert beside == f"torchwise: {row.plan} against {row.rival}"


def test_torchwise_chooses_from_the_plans_that_are_given_and_nothing_is_searched() -> None:
    given = Plan(backend="inductor", options=(("combo_kernels", True),))
    row = run(Workers(), contenders=WITH_OURS, plans=(given,))["torchwise"]
    assert row.plan in (given, EAGER)
    assert row.search_s is None
    assert [said.partition(":")[0] for said in row.searched] == [str(given)]


def test_plans_that_nobody_chooses_from_or_that_are_not_allowed_are_refused() -> None:
    lowered = Plan(precision="bf16")
    with pytest.raises(
        InputError, match="plans are for the contender torchwise, but the contenders are eager, default"
    ):
        a_request(plans=(lowered,))
    with pytest.raises(
        InputError, match="is lower-precision, but only up to same-precision is allowed: --allow lower-precision"
    ):
        a_request(contenders=WITH_OURS, plans=(lowered,))


def test_the_rival_is_of_the_same_precision_class() -> None:
    here = environment.detect("cpu")
    lowered = a_row("max-autotune", 9.0, precision="bf16", workload=a_spec(ONE, device="cpu"))
    rows = run(Workers(), contenders=WITH_OURS, earlier=a_benchmark((lowered,), environment=here))
    assert rows["torchwise"].rival in ("eager", "default")


def test_a_duel_finds_what_both_compiled_and_nobody_else() -> None:
    class Compiling(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            if isinstance(job, ContenderJob):
                folder = Path(job.job.cache_dir)
                self.found = {file.name for file in folder.iterdir()}
                (folder / job.contender).touch()
            return super().run(job, limits, on_stage)

    workers = Compiling()
    run(workers, contenders=("eager", "default", "torchwise"), warm=False)
    assert workers.found == {"torchwise", "eager"}


@pytest.mark.parametrize("warm", [True, False])
def test_what_the_search_compiled_is_not_compiled_again(warm: bool) -> None:
    class Compiling(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            if job.task == "try":
                assert not list(Path(job.cache_dir).iterdir())
                Path(job.cache_dir, "kernel").touch()
                self.jobs.append("try")
                return codec.to_json(Attempt(Costs(38.0), PASSED, a_measurement(1.5)))
            if job.task == "warm":
                return codec.to_json(Restart(2.4, a_measurement(1.5)))
            if isinstance(job, ContenderJob) and job.step == "contend":
                assert (job.contender == "torchwise") is Path(job.job.cache_dir, "kernel").exists()
            return super().run(job, limits, on_stage)

    given = Plan(backend="inductor")
    workers = Compiling(warm=4.1, contends={"torchwise": a_performance(costs=Costs(2.5))})
    rows = run(workers, contenders=("eager", "torchwise"), plans=(given,), warm=warm, calls=10**9)
    assert rows["torchwise"].plan == given
    assert rows["torchwise"].performance is not None
    costs = rows["torchwise"].performance.costs
    assert (costs.cold_s, costs.warm_s) == (38.0, 2.5), "cold in its trial, and warm in the contest"
    assert workers.jobs.count("try") == 1
    assert not any(job.startswith(f"warm {ONE} torchwise") for job in workers.jobs)


def test_on_a_full_disk_the_plan_is_compiled_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiling(Workers):
        def run(self, job: Any, limits: Any, on_stage: Any) -> Any:
            if job.task == "try":
                Path(job.cache_dir, "kernel").touch()
                return codec.to_json(Attempt(Costs(38.0), PASSED, a_measurement(1.5)))
            if job.task == "warm":
                return codec.to_json(Restart(2.4, a_measurement(1.5)))
            if isinstance(job, ContenderJob) and job.step == "contend":
                assert not list(Path(job.job.cache_dir).iterdir())
            return super().run(job, limits, on_stage)

    def fills_up(source: str, target: str, **_: Any) -> None:
        Path(target, "half a kernel").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", fills_up)
    workers = Compiling(contends={"torchwise": a_performance(costs=Costs(36.0))})
    row = run(workers, contenders=("torchwise",), plans=(Plan(backend="inductor"),), warm=False, calls=10**9)[
        "torchwise"
    ]
    assert row.performance is not None, row.reason
    assert (row.performance.costs.cold_s, row.performance.costs.warm_s) == (36.0, None)


def test_torchwise_alone_has_no_duel() -> None:
    workers = Workers()
    row = run(workers, contenders=("torchwise",))["torchwise"]
    assert (row.state, row.rival, row.duel) == (RowState.TIMED, None, None)
    assert not any(job.startswith("duel") for job in workers.jobs)


def test_a_duel_that_fails_costs_the_duel_alone() -> None:
    row = run(Workers(duel=HANG), contenders=("eager", "torchwise"))["torchwise"]
    assert (row.state, row.rival, row.duel) == (RowState.TIMED, "eager", None)
    assert row.reason == f"against eager: {HANG}"
    assert row.performance


UNSTEADY = {
    "eager": a_performance(1.0, slowness=0.5),
    "default": a_performance(1.6),  # the fastest by its speed over eager, which took twice as long meanwhile
    "max-autotune": a_performance(1.2, slowness=0.5),
    "torchwise": a_performance(1.7),
}


@pytest.mark.parametrize(
    ("beside_default", "beside_other", "worse"), [(1.3, 1.1, "max-autotune"), (1.05, 1.1, "default")]
)
def test_where_two_others_may_be_the_fastest_the_worse_duel_counts(
    beside_default: float, beside_other: float, worse: str
) -> None:
    duels = {"default": a_measurement(beside_default), "max-autotune": a_measurement(beside_other)}
    workers = Workers(contends=UNSTEADY, duels=duels)
    row = run(workers, contenders=WITH_OURS)["torchwise"]
    assert (row.rival, row.duel, row.reason) == (worse, duels[worse], "")
    assert [job for job in workers.jobs if job.startswith("duel")] == [
        f"duel {ONE} torchwise default",
        f"duel {ONE} torchwise max-autotune",
    ]


@pytest.mark.parametrize("fails", ["default", "max-autotune"])
def test_of_two_duels_one_may_fail(fails: str) -> None:
    workers = Workers(contends=UNSTEADY, duels={fails: HANG})
    row = run(workers, contenders=WITH_OURS)["torchwise"]
    [other] = {"default", "max-autotune"} - {fails}
    assert (row.rival, row.duel, row.reason) == (other, workers.duel, f"against {fails}: {HANG}")


def test_two_duels_that_fail_are_both_told() -> None:
    row = run(Workers(contends=UNSTEADY, duel=HANG), contenders=WITH_OURS)["torchwise"]
    assert (row.rival, row.duel) == ("default", None)
    assert row.reason == f"against default: {HANG}; against max-autotune: {HANG}"


def test_the_limit_of_a_contender_is_that_of_each_plan_that_is_given() -> None:
    given = a_request(contenders=WITH_OURS, plans=(Plan(threads=1),), limit_s=77.0)
    searched = a_request(contenders=WITH_OURS, limit_s=77.0)
    spec = given.workload(ONE)
    assert given.study(spec).trial_s == 77.0
    assert searched.study(spec).trial_s == EFFORTS[searched.effort].trial_s


def test_each_contender_starts_from_empty_caches_and_a_duel_from_those_of_both() -> None:
    found: dict[str, list[str]] = {}

    class Compiling(Workers):
        def _answer(self, job: Any) -> tuple[str, Any]:
            word, answer = super()._answer(job)
            if hasattr(job, "contender"):
                caches = Path(job.job.cache_dir)
                found[word] = sorted(file.name for file in caches.iterdir())
                (caches / job.contender).touch()
            return word, answer

    run(Compiling(), contenders=("eager", "default", "torchwise"), warm=False)
    rival = next(word for word in found if word.startswith("duel")).split()[-1]
    assert found == {
        f"{ONE} eager": [],
        f"{ONE} default": [],
        f"{ONE} torchwise": [],
        f"duel {ONE} torchwise {rival}": sorted([rival, "torchwise"]),
    }


@pytest.mark.parametrize("change", [{"seed": 7}, {"calls": 5}])
def test_a_benchmark_of_another_request_is_not_gone_on_with(change) -> None:
    earlier = run_benchmark(a_request(), Workers(), Heard())
    with pytest.raises(InputError, match="write to another file"):
        run_benchmark(a_request(**change), Workers(), Heard(), earlier)
    assert run_benchmark(a_request(TWO, **change), Workers(), Heard(), earlier).rows[: len(THREE)] == earlier.rows


@pytest.mark.parametrize("failure", [BaselineError("it hangs"), RuntimeError("it cannot be")])
def test_a_search_that_fails_costs_our_row(monkeypatch: pytest.MonkeyPatch, failure) -> None:
    def search(*_given: Any, **_named: Any) -> None:
        raise failure

    monkeypatch.setattr("torchwise.bench.run.run_study", search)
    rows = run(Workers(), ONE, TWO, contenders=("eager", "torchwise"))
    for target in (ONE, TWO):
        assert rows[target, "eager"].state is RowState.TIMED
        assert rows[target, "torchwise"].state is RowState.FAILED
        assert str(failure) in rows[target, "torchwise"].reason


def test_the_search_is_not_cut_short_by_the_budget_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def search(request: Any, *_given: Any, **_named: Any) -> None:
        asked.append(request.search_s)
        raise RuntimeError("that is enough")

    monkeypatch.setattr("torchwise.bench.run.run_study", search)
    run(Workers(), contenders=("eager", "torchwise"), budget_s=50.0)
    run(Workers(), contenders=("eager", "torchwise"))
    run(Workers(), contenders=("eager", "torchwise"), search_s=30.0)
    assert asked == [120.0, 120.0, 30.0], "the effort's own, or that of the request"


def test_our_row_says_what_became_of_every_plan() -> None:
    searched = run(Workers(), ONE, contenders=("eager", "torchwise"))["torchwise"].searched
    assert any(said.startswith("inductor: its process died in compile: SIGSEGV") for said in searched)
