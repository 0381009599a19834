"""Cold processor caches: emptied before each timed call, outside its time, in alternation, and shown in reports."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from sketches import a_history, a_trial, make_measurement
from typer.testing import CliRunner

import torchwise
from builders import a_measurement, a_plan, a_study, samples
from builders import a_trial as a_whole_trial
from consistency import check_study
from torchwise.cli import app
from torchwise.errors import InputError, UnsupportedError
from torchwise.measure import clock, memory
from torchwise.measure.clock import Clock
from torchwise.measure.memory import make_eviction
from torchwise.measure.paired_timing import STOPPING_ROUNDS, Mix, Precision, measure_pair
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Measurement, Study, Trial, TrialState, WorkerStage, codec
from torchwise.records.listener import Listener
from torchwise.report import Progress, render_study
from torchwise.report.study import render_html
from torchwise.store import open_storage
from torchwise.study import Request, run_study
from torchwise.study.cluster import Task
from torchwise.study.decision import decide
from torchwise.study.history import History
from torchwise.study.pairwise import next_cold
from torchwise.trial import Job, experiment

FAST = Plan(backend="inductor")


# ---- the clock


class Time:
    """Passes only while something is done, and remembers each deed."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, [""]

    def does(self, what: str, seconds: float) -> Callable[[], None]:
        def do() -> None:
            self.now += seconds
            self.done.append(what)

        return do

    def perf_counter(self) -> float:
        self.done.append("read")
        return self.now


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(clock, "time", found)
    return found


def test_caches_are_emptied_before_each_call_and_outside_of_what_is_timed(passing: Time) -> None:
    cold = Clock("cpu", evict=passing.does("evict", 100.0))
    sides = [Mix((passing.does(name, seconds),), (1.0,)) for name, seconds in (("plan", 0.5), ("eager", 1.0))]
    found = measure_pair(*sides, cold, Precision(0.02, 60.0))
    assert (set(found.candidate_s), set(found.baseline_s)) == ({0.5}, {1.0})
    assert (found.calls_per_round, len(found.candidate_s)) == (1, STOPPING_ROUNDS)
    plan, eager = (["evict", "read", name, "read"] for name in ("plan", "eager"))
    assert passing.done[1:17] == [*plan, *eager, *eager, *plan], "in an order that swaps"
    assert passing.done.count("evict") == passing.done.count("plan") + passing.done.count("eager")


def test_each_example_of_a_mix_finds_cold_caches(passing: Time) -> None:
    mix = Mix((passing.does("small", 1.0), passing.does("large", 3.0)), (0.75, 0.25))
    found = measure_pair(mix, mix, Clock("cpu", evict=passing.does("evict", 9.0)), Precision(0.02, 60.0))
    assert set(found.candidate_s) == {1.5}


def test_on_a_gpu_the_host_waits_for_empty_caches_before_the_clock_starts(
    passing: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Event:
        def __init__(self, **_: bool) -> None:
            self.record = passing.does("event", 0.0)
            self.synchronize = passing.does("wait", 0.0)

        def elapsed_time(self, _: Event) -> float:
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", passing.does("wait", 0.0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    clock._make_events.cache_clear()
    cold, call = Clock("cuda", evict=passing.does("evict", 7.0)), passing.does("call", 0.5)
    for made in (["event", "event"], []):  # which are made before the clock starts, once
        passing.done.clear()
        assert cold.time(call, 1) == clock.Reading(0.5, 0.25)
        assert passing.done == ["evict", "wait", *made, "event", "read", "call", "event", "wait", "read"]
    clock._make_events.cache_clear()


# ---- the buffer


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The buffers that are made. Large ones are views of one element."""
    made: list[torch.Tensor] = []

    def empty(size: int, **_: Any) -> torch.Tensor:
        made.append(torch.ones(1, dtype=torch.uint8).expand(size) if size > 4096 else torch.ones(size))
        return made[-1]

    monkeypatch.setattr(torch, "empty", empty)
    return made


def caches_of(folder: Path, cpu: int, **sizes: str) -> None:
    """Write Linux's description of the caches of a CPU: the size and who shares it, by level."""
    for place, (level, told) in enumerate(sizes.items()):
        index = folder / f"cpu{cpu}" / "cache" / f"index{place}"
        index.mkdir(parents=True)
        size, shared = told.split()
        for name, text in (("level", level[1:]), ("size", size), ("shared_cpu_list", shared)):
            (index / name).write_text(f"{text}\n")


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CPUS", tmp_path)
    monkeypatch.setattr(memory, "usable_cpus", lambda: frozenset({0, 1, 2}))
    return tmp_path


def test_the_buffer_is_twice_the_last_level_caches_each_counted_once(cpus: Path, buffers: list[torch.Tensor]) -> None:
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2")):
        caches_of(cpus, cpu, L1=f"48K {cpu}", L3=f"32768K {shared}", L2=f"2048K {cpu}")
    make_eviction("cpu")
    assert buffers[0].numel() == 2 * 2 * 32768 * 1024


def test_a_cache_that_is_not_told_is_assumed_and_a_huge_one_is_capped(cpus: Path, buffers: list[torch.Tensor]) -> None:
    make_eviction("cpu")
    for cpu in range(3):
        caches_of(cpus, cpu, L3="9999999K 0-2")
    make_eviction("cpu")
    assert [buffer.numel() for buffer in buffers] == [128 << 20, 1 << 30]


def test_all_of_the_buffer_is_written(cpus: Path, buffers: list[torch.Tensor]) -> None:
    for cpu in range(3):
        caches_of(cpus, cpu, L2="1K 0-2")
    evict = make_eviction("cpu")
    assert buffers[0].sum() == 2048
    evict()
    assert not buffers[0].any()


def test_no_buffer_takes_more_than_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_last_level_bytes", lambda: 64 << 20)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Free", (), {"available": 200 << 20}))
    with pytest.raises(UnsupportedError, match="takes a buffer of 128 MiB, but 200 MiB of memory are free"):
        make_eviction("cpu")


# ---- one process


SHORT = replace(EFFORTS["quick"], measure_s=0.01)
TARGET = f"{Path(__file__).parent.parent / 'targets' / 'misbehaving.py'}:wrong"


@pytest.mark.parametrize("cold", [False, True])
def test_a_start_from_warm_caches_times_cold_ones_where_that_is_asked(
    cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[int] = []
    monkeypatch.setattr("torchwise.trial.harness.make_eviction", lambda device: lambda: evicted.append(1))
    job = Job("warm", WorkloadSpec(TARGET), Plan(threads=1), effort=SHORT, cold=cold)
    found = experiment.start_warm(job, lambda stage: None).measurement
    assert found.candidate_s
    assert len(found.cold_candidate_s) == len(found.cold_baseline_s)
    assert len(evicted) >= 2 * len(found.cold_candidate_s), "and what was disturbed is timed again"
    assert bool(found.cold_candidate_s) is bool(evicted) is cold


def test_caches_that_cannot_be_emptied_leave_the_rest_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise UnsupportedError("no memory")

    monkeypatch.setattr("torchwise.trial.harness.make_eviction", refuse)
    job = Job("warm", WorkloadSpec(TARGET), Plan(threads=1), effort=SHORT, cold=True)
    found = experiment.start_warm(job, lambda stage: None).measurement
    assert found.candidate_s
    assert found.cold_speedup is None
    assert found.not_cold == "not timed with cold processor caches: no memory"


# ---- records


def with_cold(found: Measurement, speedup: float, rounds: int = 40, seed: int = 0) -> Measurement:
    """Return a measurement that was timed with cold caches, too."""
    eager, own = samples(2e-2, rounds, seed=seed), samples(2e-2 / speedup, rounds, seed=seed + 1)
    return replace(found, cold_candidate_s=own, cold_baseline_s=eager)


def test_a_measurement_has_a_speed_up_for_hot_and_for_cold_caches() -> None:
    found = with_cold(make_measurement(2.0), 1.5)
    assert found.speedup.mid == 2.0
    assert found.cold_speedup is not None
    assert found.cold_speedup.mid == pytest.approx(1.5, rel=0.02)
    assert codec.from_json(codec.to_json(found), Measurement) == found


def test_a_measurement_of_before_has_none() -> None:
    old = codec.to_builtins(make_measurement(2.0))
    del old["cold_candidate_s"], old["cold_baseline_s"]
    assert codec.from_builtins(old, Measurement).cold_speedup is None


def test_cold_rounds_that_are_no_pairs_are_refused() -> None:
    broken = replace(with_cold(make_measurement(2.0), 1.5), cold_baseline_s=(1.0,))
    with pytest.raises(
        InputError, match="cold_candidate_s has 40 samples and cold_baseline_s 1, but must have as many"
    ):
        codec.from_json(codec.to_json(broken), Measurement)


def test_processes_that_timed_cold_caches_are_combined_as_those_of_hot_ones_are() -> None:
    one = a_trial(FAST)
    assert one.cold_speedup is None
    two = replace(
        one,
        repeats=(*one.repeats, with_cold(make_measurement(2.0), 1.5), with_cold(make_measurement(2.0), 1.6, seed=7)),
    )
    assert [ratio.mid for ratio in two.cold_speedups] == pytest.approx([1.5, 1.6], rel=0.02)
    assert two.cold_speedup is not None
    assert two.cold_speedup.mid == pytest.approx(math.sqrt(1.5 * 1.6), rel=0.02)
    assert two.cold_speedup.half_width > 0.05, "few processes claim no less than what processes differ by"


def test_a_study_s_json_tells_it_and_what_does_not_follow_is_refused() -> None:
    study = make_decided_study(1.5)
    data = study.to_dict()
    assert Study.from_json(study.to_json()) == study
    data["trials"][0]["cold_speedup"]["mid"] = 9.0
    with pytest.raises(InputError, match=r"trials\.0\.cold_speedup is .*, but must follow from the samples"):
        Study.from_json(codec.to_json(data))


# ---- which process comes next


@pytest.mark.parametrize(
    ("cold", "more"),
    [
        ((), True),
        ((2.0,), False),  # plainly faster then, too
        ((0.5,), False),  # plainly slower
        ((1.05,), True),
        ((1.05, 1.05, 1.05), False),  # as many as there may be
    ],
)
def test_the_decided_plan_is_timed_until_it_is_plain(cold: tuple[float, ...], more: bool) -> None:
    one = a_trial(FAST)
    trial = replace(one, repeats=(*one.repeats, *(with_cold(make_measurement(2.0), ratio) for ratio in cold)))
    history = a_history(a_trial(Plan(threads=1), 1.2), trial)
    assert next_cold(history, 3, 0.001) == (trial if more else None)


def test_a_narrow_interval_is_enough() -> None:
    one = a_trial(FAST)
    trial = replace(one, repeats=(*one.repeats, with_cold(make_measurement(2.0), 1.05)))
    assert next_cold(a_history(trial), 3, 0.5) is None


def test_where_eager_stays_nothing_is_timed() -> None:
    assert next_cold(a_history(a_trial(FAST, 0.9)), 3, 0.02) is None


# ---- the search


def a_request(**options: Any) -> Request:
    return Request(WorkloadSpec("zoo:anything", calls=10**8), plans=(FAST,), **options)


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_what_times_no_single_calls_is_refused(objective: str) -> None:
    with pytest.raises(InputError, match=f"objective '{objective}', but are only for latency"):
        Request(WorkloadSpec("zoo:anything", objective=objective), cold=True)  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["tune", "zoo:tutorial.fusion_demo", "--cold", "--objective", objective])
    assert isinstance(done.exception, InputError)
    with pytest.raises(InputError, match="only for latency"):
        torchwise.tune("zoo:tutorial.fusion_demo", objective=objective, cold=True)


def test_a_sweep_asks_as_the_command_does() -> None:
    assert "--cold" in Task("zoo:anything", "cpu", cold=True).arguments()
    assert not any("cold" in word for word in Task("zoo:anything", "cpu").arguments())
    assert Task("zoo:anything", "cpu", cold=True).request().cold


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


class Machine:
    """Answers for workers: a plan is 2.0 times as fast as eager, and so many times with cold caches.

    Attributes:
        cold: that speed-up, or None if caches cannot be emptied.
        ran: task of each job, and whether it asked for cold caches.
    """

    def __init__(self) -> None:
        self.cold: float | None = 1.6
        self.hot = 2.0
        self.ran: list[tuple[str, bool]] = []

    def run(self, job: Job, *_: Any) -> str:
        from test_study import GOOD, Table

        from torchwise.records import Costs
        from torchwise.trial.job import Attempt, Restart

        self.ran.append((job.task, job.cold))
        if job.task == "inspect":
            return Table().inspect()
        found = a_measurement(self.hot, seed=len(self.ran))
        if job.cold and self.cold:
            found = with_cold(found, self.cold)
        elif job.cold:
            found = replace(found, notes=("not timed with cold processor caches: no memory",))
        answer: object = Restart(2.5, found) if job.task == "warm" else Attempt(Costs(10.0), GOOD, found)
        return codec.to_json(answer)


def test_the_decided_plan_alone_is_timed_once_more_where_that_is_asked(store: Any, machine: Machine) -> None:
    study = run_study(a_request(cold=True), store, machine, Listener())  # type: ignore[arg-type]
    assert machine.ran == [("inspect", False), ("try", False), ("warm", False), ("warm", True)]
    assert study.decision is not None
    assert study.decision.speedup == study.trials[0].speedup
    assert len(study.trials[0].cold_speedups) == 1
    assert not study.excluded


def test_a_stored_study_is_gone_on_with_and_not_begun_anew(store: Any, machine: Machine) -> None:
    first = run_study(a_request(), store, machine, Listener())  # type: ignore[arg-type]
    assert not any(cold for _, cold in machine.ran)
    machine.ran.clear()
    second = run_study(a_request(cold=True), store, machine, Listener())  # type: ignore[arg-type]
    assert (second.id, machine.ran) == (first.id, [("inspect", False), ("warm", True)])
    machine.ran.clear()
    for cold in (True, False):
        third = run_study(a_request(cold=cold), store, machine, Listener())  # type: ignore[arg-type]
        assert third.trials == second.trials
    assert machine.ran == [("inspect", False)] * 2


@pytest.mark.parametrize(
    ("changed", "said", "timed"),
    [
        ({"hot": 0.9}, "cold processor caches: eager stays, so there is no plan to time with them", 0),
        ({"cold": None}, "not timed with cold processor caches: no memory", 1),
    ],
)
def test_why_there_is_no_figure_is_said(
    store: Any, machine: Machine, changed: dict[str, Any], said: str, timed: int
) -> None:
    vars(machine).update(changed)
    study = run_study(a_request(cold=True), store, machine, Listener())  # type: ignore[arg-type]
    assert said in study.excluded
    assert sum(cold for _, cold in machine.ran) == timed, "nor would another process"


def test_a_worker_that_ends_while_it_times_them_costs_the_plan_nothing(store: Any, machine: Machine) -> None:
    class Dying(Machine):
        def run(self, job: Job, *more: Any) -> Any:
            answer = super().run(job, *more)
            return Failure(FailureKind.OUT_OF_MEMORY, WorkerStage.MEASURE_COLD, "SIGKILL") if job.cold else answer

    dying = Dying()
    study = run_study(a_request(cold=True), store, dying, Listener())  # type: ignore[arg-type]
    hot = run_study(a_request(), store, machine, Listener())  # type: ignore[arg-type]
    assert study.decision is not None
    assert hot.decision is not None
    assert (study.decision.plan, study.trials[0].state) == (hot.decision.plan, TrialState.COMPLETE)
    assert sum(cold for _, cold in dying.ran) == 1
    said = [text for text in study.excluded if text.startswith("cold processor caches: ")]
    assert any(WorkerStage.MEASURE_COLD in text for text in said)


def test_a_spent_budget_is_why_as_well(store: Any, machine: Machine, spent_clock: Any) -> None:
    class Slow(Machine):
        def run(self, job: Job, limits: object, on_stage: Any) -> str:  # type: ignore[override]
            on_stage("compile")
            spent_clock.now += 20
            return super().run(job)

    study = run_study(a_request(cold=True, budget_s=30.0), store, Slow(), Listener())  # type: ignore[arg-type]
    assert "cold processor caches: the budget is spent" in study.excluded


def test_a_search_that_ends_with_time_left_does_not_blame_the_budget(store: Any, machine: Machine) -> None:
    class Lost(Machine):
        def run(self, job: Job, *more: Any) -> str:
            if job.cold:
                raise UnsupportedError("no node is left")
            return super().run(job, *more)

    study = run_study(a_request(cold=True), store, Lost(), Listener())  # type: ignore[arg-type]
    assert "cold processor caches: the search ended before the plan was timed with them" in study.excluded
    assert not any("budget" in text for text in study.excluded)


# ---- the output


def make_decided_study(*cold: float) -> Study:
    """Return a study decided for a plan of 1.5 times eager's speed, which is timed with cold caches, too."""
    repeats = tuple(with_cold(a_measurement(1.5, seed=place), ratio, seed=place) for place, ratio in enumerate(cold, 5))
    trials: list[Trial] = [a_whole_trial(0, a_plan(), 1.5, repeats=(*repeats, a_measurement(1.5, seed=99)))]
    workload = WorkloadSpec("zoo:vision.resnet50", device="cpu", calls=10**6)
    study = a_study(trials, decided=None, workload=workload)
    return replace(study, decision=decide(History(workload, study.inspection, study.trials), study.environment))


def render_text(study: Study) -> str:
    file = io.StringIO()
    Console(file=file, width=300).print(render_study(study))
    return file.getvalue()


SAYS = {
    (1.45, 1.45, 1.46): "",
    (1.01, 1.02, 1.2): "With cold caches it may be no faster than eager: the measurements cannot tell.",
    (0.7, 0.7, 0.71): "With cold caches it is slower than eager.",
    (): "",
}


@pytest.mark.parametrize("cold", SAYS)
def test_both_figures_are_named_and_a_gain_that_is_lost_is_said(cold: tuple[float, ...]) -> None:
    study = make_decided_study(*cold)
    assert study.decision is not None
    assert study.decision.plan == FAST, "the decision rests on hot caches"
    text, page = render_text(study), render_html(study)
    check_study(study, text, page)
    for said in (text, page):
        assert ("cold caches it" in said) is bool(SAYS[cold])
        assert SAYS[cold] in said
        assert ("with hot processor caches 1.5" in said) is bool(cold)


def test_the_checker_sees_a_cold_figure_of_others() -> None:
    study = make_decided_study(1.4, 1.45, 1.46)
    text, page = render_text(study), render_html(study)
    with pytest.raises(AssertionError, match="cold"):
        check_study(study, text.replace(", with cold caches 1.4", ", with cold caches 1.7"), page)
    with pytest.raises(AssertionError, match="cold"):
        check_study(study, text, page.replace("with hot processor caches", "caches"))


def test_progress_tells_it() -> None:
    file = io.StringIO()
    with Progress(Console(file=file, width=200)) as progress:
        progress.finish_repeat(make_decided_study(1.4, 1.45).trials[0])
    assert "in 4 processes: 1.5" in file.getvalue()
    assert "; with cold caches 1.4" in file.getvalue()
