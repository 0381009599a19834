"""A search of several lanes, with a launcher that answers from a table and shows who runs beside whom."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sketches import INDUCTOR, PASSED, an_inspection, make_measurement

from torchwise.errors import BaselineError
from torchwise.plan import EAGER, Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, Measurement, Study, StudyState, Trial, TrialState, codec
from torchwise.records.listener import Listener
from torchwise.records.trial import WAITING
from torchwise.report import Progress
from torchwise.store import Storage, open_storage
from torchwise.study import Request, crew, lanes, run_study, search_loop
from torchwise.study.crew import TURN, Crew
from torchwise.study.history import History, takes_a_trial
from torchwise.study.lanes import Lane
from torchwise.study.samplers import ListedSampler, Proposal
from torchwise.trial import Job, Limits
from torchwise.trial.job import Attempt, Restart
from torchwise.trial.limits import StoppedError

PLANS = tuple(Plan(backend="inductor", threads=number) for number in range(1, 7))
PATIENCE_S = 30.0
"""Seconds that a test waits for another thread before it fails."""


class Machine:
    """A launcher whose workers may be held up, each in the thread that asked for it.

    Attributes:
        speeds: the speed-up of each plan, or its failure, or an error to raise.
        hold: called in each trial with its job and its limits.
        together: the largest number of trials that ran at once.
    """

    def __init__(self, hold: Callable[[Job, Limits], None] = lambda _job, _limits: None) -> None:
        self.speeds: dict[Plan, Any] = {}
        self.hold = hold
        self.ran: list[tuple[str, Plan, Limits, Job]] = []
        self.together = self._now = 0
        self._lock = threading.Lock()

    def run(self, job: Job, limits: Limits, on_stage: Callable[[str], None]) -> str | Failure:
        with self._lock:
            self.ran.append((job.task, job.plan, limits, job))
        if job.task == "inspect":
            return codec.to_json(an_inspection(traits=frozenset({"module"})))
        if job.task == "duel":
            return codec.to_json(Measurement((1.0, 1.0), (1.0, 1.0)))
        if job.task == "warm":
            return codec.to_json(Restart(0.0, make_measurement(self.speeds.get(job.plan, 2.0))))
        with self._lock:
            self._now += 1
            self.together = max(self.together, self._now)
        try:
            on_stage("compile")
            self.hold(job, limits)
            found = self.speeds.get(job.plan, 2.0)
        finally:
            with self._lock:
                self._now -= 1
        if isinstance(found, BaseException):
            raise found
        return (
            found if isinstance(found, Failure) else codec.to_json(Attempt(Costs(0.0), PASSED, make_measurement(found)))
        )

    def list_tried(self) -> list[Plan]:
        return [plan for task, plan, *_ in self.ran if task == "try"]


class Notes(Listener):
    """Keeps the notes and the expectations."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.expected: list[tuple[int, float]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def expect_trials(self, count: int, seconds: float) -> None:
        self.expected.append((count, seconds))


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def three_lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have every search on a GPU try three plans at once, on two cores each."""
    monkeypatch.setattr(
        lanes, "count_lanes", lambda request, *_, **__: (request.workers or 3, "no more were asked for")
    )
    monkeypatch.setattr(lanes.environment, "usable_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr(lanes.environment, "cpu_quota", lambda: None)
    monkeypatch.setattr(lanes.device_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def search(storage: Storage, machine: Machine, listener: Listener | None = None, **options: Any) -> Study:
    options = {"plans": PLANS, "workers": None, **options}
    request = Request(WorkloadSpec("zoo:anything", device="cuda", calls=10**9), **options)
    return run_study(request, storage, machine, listener or Listener())


def list_running(storage: Storage) -> list[Trial]:
    [summary] = storage.list_studies()
    return [trial for trial in storage.get_study(summary.id).trials if trial.state is TrialState.RUNNING]


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "the other threads did not come so far"
        time.sleep(0.005)


def wait_for_stop(limits: Limits) -> None:
    """Do as a worker that would compile for ever."""
    assert limits.stop is not None
    assert limits.stop.wait(PATIENCE_S), "nobody ended this worker"
    limits.check_stop()


def test_each_lane_tries_another_plan_at_the_same_time(storage: Storage) -> None:
    """All of three trials are RUNNING in the store, and none goes on before all of them have begun."""
    meeting, seen = threading.Barrier(3), list[int]()

    def hold(_job: Job, _limits: Limits) -> None:
        meeting.wait(PATIENCE_S)
        seen.append(len(list_running(storage)))
        meeting.wait(PATIENCE_S)

    machine, listener = Machine(hold), Notes()
    study = search(storage, machine, listener)
    assert machine.together == 3
    assert seen == [3] * len(PLANS)
    assert sorted(machine.list_tried(), key=str) == sorted(PLANS, key=str), "each plan is tried once"
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert [trial.number for trial in study.trials] == list(range(len(PLANS)))
    assert "up to 3 plans are tried at once, each with 2 cores of its own" in listener.notes


def test_a_worker_has_cores_that_no_other_lane_has_and_one_is_left_to_the_search(storage: Storage) -> None:
    meeting = threading.Barrier(3)
    machine = Machine(lambda *_: meeting.wait(PATIENCE_S) and None)
    search(storage, machine)
    shares = {job.cores for task, _, _, job in machine.ran if task == "try"}
    assert sorted(core for share in shares for core in share) == [0, 1, 2, 3, 4, 5]
    assert all(job.variables()["TORCHWISE_OWN_CORES"] == "1" for task, _, _, job in machine.ran if task == "try")
    [profiled] = [job for task, _, _, job in machine.ran if task == "inspect"]
    assert not profiled.cores, "the plain model is profiled alone"
    assert {job.cores for task, _, _, job in machine.ran if task == "warm"} <= shares, "all processes are alike"


def test_a_search_of_several_lanes_decides_as_one_of_one_lane(storage: Storage, tmp_path: Path) -> None:
    """The same sampler, on the same machine: lanes only change the order in which results come."""
    decided = {}
    for workers in (1, 3):
        machine = Machine()
        machine.speeds = {INDUCTOR: 2.0, Plan(capture="call"): 4.0, EAGER: 1.0}
        with open_storage(str(tmp_path / f"{workers}.db")) as own:
            study = search(own, machine, plans=None, workers=workers, effort="quick")
        assert study.state is StudyState.DECIDED
        assert study.decision is not None
        decided[workers] = study.decision.plan
        assert len(machine.list_tried()) == len(set(machine.list_tried()))
    assert decided[1] == decided[3]


def test_no_more_trials_begin_than_the_effort_allows(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that choose at the same time would each count the same trials, and begin one too many."""
    monkeypatch.setitem(EFFORTS, "quick", replace(EFFORTS["quick"], max_trials=2))
    machine = Machine(lambda *_: time.sleep(0.05))
    study = search(storage, machine, plans=None, effort="quick")
    assert len([trial for trial in study.trials if takes_a_trial(trial.plan)]) <= 2


class OneFirst(ListedSampler):
    """Proposes two more plans once the first one has a result."""

    def ask(self, history: History) -> Proposal | None:
        first = history.find_trial(PLANS[0])
        return None if first and first.state is TrialState.RUNNING else super().ask(history)


def test_a_lane_with_nothing_to_try_goes_on_as_soon_as_a_result_of_another_lets_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_loop, "ListedSampler", OneFirst)
    monkeypatch.setattr(crew, "WAIT_S", 100 * PATIENCE_S)  # nobody looks for results by itself
    meeting = threading.Barrier(2)

    def hold(job: Job, _limits: Limits) -> None:
        if job.plan != PLANS[0]:
            meeting.wait(PATIENCE_S)

    machine = Machine(hold)
    study = search(storage, machine, plans=PLANS[:3], workers=2)
    assert machine.list_tried()[0] == PLANS[0]
    assert machine.together == 2
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_the_caches_of_a_running_trial_stay_when_another_ends(storage: Storage) -> None:
    quick_ended, kept = threading.Event(), list[bool]()

    class Ends(Listener):
        def finish_trial(self, trial: Trial) -> None:
            if trial.plan == PLANS[1]:
                quick_ended.set()

    def hold(job: Job, _limits: Limits) -> None:
        if job.plan == PLANS[0]:
            Path(job.cache_dir, "code").touch()
            assert quick_ended.wait(PATIENCE_S)
            kept.append(Path(job.cache_dir, "code").exists())

    search(storage, Machine(hold), Ends(), plans=PLANS[:2])
    assert kept == [True]


def test_an_interruption_ends_all_workers_and_leaves_no_trial_running(storage: Storage) -> None:
    """As Ctrl-C: the main thread is interrupted, wherever it is, and the workers of the others end at once."""
    main, machine = threading.main_thread(), Machine()
    assert main.ident is not None

    def hold(job: Job, limits: Limits) -> None:
        if job.plan == PLANS[0]:
            return  # one trial is done by then
        if threading.current_thread() is main:
            wait_for(lambda: machine.together == 3)
            signal.pthread_kill(main.ident, signal.SIGINT)
            time.sleep(PATIENCE_S)
        wait_for_stop(limits)

    machine.hold = hold
    with pytest.raises(KeyboardInterrupt):
        search(storage, machine)
    [summary] = storage.list_studies()
    study = storage.get_study(summary.id)
    assert study.state is StudyState.INTERRUPTED
    assert [trial.plan for trial in study.trials] == [PLANS[0]], "the finished trial is kept, the others did not happen"
    assert not [thread.name for thread in threading.enumerate() if thread.name in ("torchwise-1", "torchwise-2")]
    again = search(storage, Machine())
    assert {trial.plan for trial in again.trials} == set(PLANS)


def test_an_error_in_one_lane_ends_the_others_and_is_raised(storage: Storage) -> None:
    machine = Machine()

    def hold(job: Job, limits: Limits) -> None:
        wait_for(lambda: machine.together == 3)
        if job.plan == PLANS[1]:
            raise BaselineError("the plain model fails")
        wait_for_stop(limits)

    machine.hold = hold
    with pytest.raises(BaselineError, match="the plain model fails"):
        search(storage, machine)
    assert not list_running(storage)
    assert len(machine.list_tried()) == 3, "none begins after the error"


def test_a_worker_that_fails_is_its_own_trial_s_failure(storage: Storage) -> None:
    machine = Machine()
    machine.speeds[PLANS[2]] = Failure(FailureKind.DIED, "compile", "SIGSEGV")
    study = search(storage, machine)
    failed = [trial.plan for trial in study.trials if trial.state is TrialState.FAIL]
    assert failed == [PLANS[2]]
    assert len(study.trials) == len(PLANS)


def test_all_workers_end_with_the_budget_and_none_begins_after_it(storage: Storage, spent_clock: Any) -> None:
    """Each of three trials takes 60 s of a budget of 100 s at the same time, so the next three have 40 s left."""
    meeting = threading.Barrier(3, action=lambda: setattr(spent_clock, "now", spent_clock.now + 60))
    machine = Machine(lambda *_: meeting.wait(PATIENCE_S) and None)
    study = search(storage, machine, budget_s=100.0)
    tried = [limits for task, _, limits, _ in machine.ran if task == "try"]
    assert sorted(round(limits.end_s) for limits in tried) == [40, 40, 40, 100, 100, 100]
    assert all(limits.time_s <= limits.end_s for limits in tried)
    assert "the budget of 1 min 40 s is spent" in str(study.excluded)


@pytest.mark.parametrize(
    "failure",
    [Failure(FailureKind.OUT_OF_MEMORY, "verify", "CUDA out of memory"), Failure(FailureKind.DIED, "load", "SIGKILL")],
)
def test_a_trial_that_ran_out_of_memory_beside_others_is_repeated_alone(storage: Storage, failure: Failure) -> None:
    machine, shares = Machine(), list[int]()
    wide = PLANS[1]

    def hold(job: Job, limits: Limits) -> None:
        if job.plan == wide:
            shares.append(limits.memory_bytes)
            if len(shares) == 1:
                wait_for(lambda: machine.together == 3)
                machine.speeds[wide] = failure
            else:
                assert machine._now == 1
                machine.speeds[wide] = 3.0
        elif len(shares) < 2:
            wait_for(lambda: machine.together == 3)

    machine.hold, log = hold, io.StringIO()
    study = search(storage, machine, Progress(Console(file=log, width=200)))
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert machine.list_tried().count(wide) == 2
    assert shares[1] > 2 * shares[0], "a lane has a third of the memory, and one that is alone has all"
    assert "note: trial 1 ran out of memory beside others: from now on each runs alone" in log.getvalue()
    assert "6 of about 6" in log.getvalue()
    assert "of about 7" not in log.getvalue(), "a trial that begins again is counted once"


def test_a_trial_that_needs_too_much_memory_alone_has_failed(storage: Storage) -> None:
    machine = Machine()
    machine.speeds[PLANS[0]] = Failure(FailureKind.OUT_OF_MEMORY, "verify", "CUDA out of memory")
    study = search(storage, machine)
    assert machine.list_tried().count(PLANS[0]) == 2
    assert study.trials[0].state is TrialState.FAIL


def test_the_time_left_is_that_of_compiles_side_by_side_and_of_measurements_in_turn(
    storage: Storage, tmp_path: Path
) -> None:
    """Six plans of 4 s of compiling and 2 s besides take 36 s one after the other, and 8 s and 12 s in three lanes."""
    expected = {}
    for workers in (1, 3):
        heard = Notes()
        with open_storage(str(tmp_path / f"{workers}.db")) as own:
            search(own, Machine(), heard, workers=workers)
        expected[workers] = heard.expected[0]
    (alone, alone_s), (count, seconds) = expected[1], expected[3]
    assert alone == count == len(PLANS)
    assert seconds / alone_s == pytest.approx(20 / 36)


def test_on_one_lane_nothing_is_said_and_no_thread_begins(storage: Storage) -> None:
    threads, listener = set[str](), Notes()
    machine = Machine(lambda *_: threads.add(threading.current_thread().name))
    search(storage, machine, listener, workers=1)
    assert threads == {threading.main_thread().name}
    assert machine.together == 1
    assert all(limits.stop is None for _, _, limits, _ in machine.ran)
    assert all(not job.cores for *_, job in machine.ran)
    assert not listener.notes


def test_while_one_of_several_workers_goes_on_the_search_does_not_wait() -> None:
    told: list[str] = []
    several = Crew((Lane(0), Lane(1)), told.append)
    hear_one, hear_other = partial(several._enter, 0), partial(several._enter, 1)
    hear_one("compile")
    hear_other(WAITING)
    hear_one(WAITING)
    hear_other("measure")
    hear_one("compile")
    hear_other(WAITING)
    several._leave(0)
    assert told == ["compile", TURN, WAITING, "measure", "compile", TURN, WAITING]


def test_a_stopped_search_ends_its_workers_at_once() -> None:
    stop = threading.Event()
    Limits(1.0, 1).check_stop()
    Limits(1.0, 1, stop=stop).check_stop()
    stop.set()
    with pytest.raises(StoppedError):
        Limits(1.0, 1, stop=stop).check_stop()
