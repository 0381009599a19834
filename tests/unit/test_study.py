"""The loop, with a launcher that answers from a table instead of running anything."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchwise import environment
from torchwise.environment import detect
from torchwise.errors import BaselineError, BudgetError, GraphBreakError, InputError, UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Duel,
    Failure,
    FailureKind,
    Inspection,
    Measurement,
    Outcome,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
    WorkerStage,
    codec,
)
from torchwise.records.listener import Listener
from torchwise.records.reasons import why
from torchwise.records.trial import WAITING
from torchwise.store import Storage, open_storage
from torchwise.study import Caches, Request, run_study
from torchwise.study.request import INSPECTIONS
from torchwise.trial import Job, Limits
from torchwise.trial.full_graph import FullGraph, FullGraphJob
from torchwise.trial.job import Attempt, Restart

EAGER_S = 0.010
INDUCTOR = Plan(backend="inductor")
GOOD = Verdict((Check("values", Outcome.PASS, "right"),))
BAD = Verdict((Check("values", Outcome.FAIL, "wrong"),))


def samples(seconds: float) -> tuple[float, ...]:
    return tuple(seconds * factor for factor in (0.99, 1.0, 1.01, 1.0, 0.995, 1.005))


class Table:
    """A launcher that knows how each plan runs: (speed-up, cold cost, verdict), a failure, or an exception."""

    def __init__(self, **plans: object) -> None:
        self.known: dict[Plan, object] = {}
        self.ran: list[tuple[str, Plan]] = []
        self.usual: set[float | None] = set()
        self.structure = "structure"
        self.default: object = (0.5, 0.0, GOOD)

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        self.ran.append((job.task, job.plan))
        if job.task == "inspect":
            return self.inspect()
        if job.task == "duel":
            return codec.to_json(
                Measurement(samples(EAGER_S / self.speed(job.plan)), samples(EAGER_S / self.speed(job.rival)))
            )
        self.usual.add(job.baseline_s)
        answer = self.known.get(job.plan, self.default)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Failure):
            return answer
        speedup, cold, verdict = answer  # type: ignore[misc]
        timed = Measurement(samples(EAGER_S / speedup), samples(EAGER_S)) if verdict is GOOD else None
        if job.task == "warm" and timed:
            return codec.to_json(Restart(cold / 4, timed))
        if timed and job.prune_below and timed.speedup.high < job.prune_below:
            timed = replace(timed, pruned=True)
        return codec.to_json(Attempt(Costs(cold), verdict, timed))

    def speed(self, plan: Plan | None) -> float:
        """Return the speed-up of a plan that is right, as a duel finds it."""
        speedup: float = self.known.get(plan or EAGER, self.default)[0]  # type: ignore[index]
        return speedup

    def inspect(self) -> str:
        eager = Measurement(samples(EAGER_S), samples(EAGER_S))
        inspection = Inspection(
            "identity" + self.structure, self.structure, "Net", ("x",), frozenset({"module"}), eager, 0.1
        )
        return codec.to_json(inspection)

    def list_tried(self) -> list[Plan]:
        return [plan for task, plan in self.ran if task == "try"]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def table() -> Table:
    found = Table()
    found.known[INDUCTOR] = (2.0, 10.0, GOOD)
    return found


def request(calls: int = 100_000, **options: object) -> Request:
    return Request(WorkloadSpec("zoo:anything", calls=calls), **options)  # type: ignore[arg-type]


def test_where_compiling_pays_it_is_decided_for(storage: Storage, table: Table) -> None:
    study = run_study(request(), storage, table, Listener())
    assert study.state is StudyState.DECIDED
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR
    assert study.decision.warm_s == 2.5
    assert "2" in study.decision.reason
    assert ("warm", INDUCTOR) in table.ran


def test_a_trial_knows_what_eager_usually_takes(storage: Storage, table: Table) -> None:
    """With that it can tell when other programs slow eager."""
    run_study(request(plans=(INDUCTOR,)), storage, table, Listener())
    assert EAGER_S in table.usual


def test_a_search_does_not_pay_for_waiting(storage: Storage, spent_clock: Any) -> None:
    """With `wait`, the budget of a search is for its own work."""

    class Waits(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task != "inspect":
                for stage, seconds in ((WAITING, 1000), ("compile", 3)):
                    on_stage(stage)
                    spent_clock.now += seconds
            return super().run(job, limits, on_stage)

    table = Waits()
    study = run_study(request(plans=(INDUCTOR, Plan(threads=1)), budget_s=5, wait=True), storage, table, Listener())
    assert len(table.list_tried()) == 2, "the first took three seconds of five"
    assert [trial.seconds for trial in study.trials] == [3, 3]
    assert study.seconds == 6


def test_a_plan_that_compiles_for_ever_leaves_time_for_another(storage: Storage, spent_clock: Any) -> None:
    """The budget of a search is shared: the first plan is ended in time for the next to be tried."""
    rewritten = Plan(backend="inductor", transforms=("complex_to_real",))
    limits_s: dict[Plan, float] = {}

    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task == "try":
                limits_s[job.plan] = limits.time_s
                on_stage("compile")
                spent_clock.now += limits.time_s if job.plan == rewritten else 12
            return super().run(job, limits, on_stage)

        def inspect(self) -> str:
            found = codec.from_json(super().inspect(), Inspection)
            return codec.to_json(replace(found, traits=found.traits | {"complex"}, operators=80))

    table = Slow()
    table.known[rewritten] = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit")
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(10**7, effort="quick", budget_s=90.0), storage, table, Listener())
    assert table.list_tried()[:2] == [rewritten, INDUCTOR]
    assert 60 < limits_s[rewritten] < 90
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


@pytest.mark.parametrize(("has_successor", "takes"), [(False, None), (True, None), (True, True), (True, False)])
def test_a_search_leaves_the_time_that_its_successor_needs(
    has_successor: bool, takes: bool | None, storage: Storage, spent_clock: Any
) -> None:
    """Once a plan leads, profiling and one trial are kept for the next search, which is for other sizes, if any."""
    asks: list[bool] = []

    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            spent_clock.now += {"inspect": 40, "try": 20}.get(job.task, 0)
            asks.append(job.tries_sizes)
            return super().run(job, limits, on_stage)

        def inspect(self) -> str:
            return codec.to_json(replace(codec.from_json(super().inspect(), Inspection), takes_other_sizes=takes))

    table, named = Slow(), (Plan(threads=1), INDUCTOR, Plan(threads=9), Plan(threads=3))
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    asked = request(plans=named, budget_s=150, successor=(lambda plan: plan) if has_successor else None)
    study = run_study(asked, storage, table, Listener())
    is_kept = has_successor and takes is not False
    assert len(table.list_tried()) == (2 if is_kept else 4)
    assert asks[0] is has_successor
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR
    if is_kept:
        said = "whatever else: the budget of 2 min 30 s is spent but for 75.0 s, which another search needs"
        assert study.excluded == (said,)


def test_a_successor_s_trial_is_a_whole_one_and_not_that_of_a_loser(storage: Storage, spent_clock: Any) -> None:
    class Uneven(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            spent_clock.now += 0 if job.task != "try" else 40 if job.plan == INDUCTOR else 5
            return super().run(job, limits, on_stage)

    table, named = Uneven(), (Plan(threads=1), INDUCTOR, Plan(threads=9), Plan(threads=3))
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    run_study(request(plans=named, budget_s=100, successor=lambda plan: plan), storage, table, Listener())
    assert table.list_tried() == [Plan(threads=1), INDUCTOR], "45 s of the budget are spent, and 56 s are kept"


def test_a_successor_that_compiles_in_another_mode_is_kept_no_time_for_that_of_the_leader(
    storage: Storage, spent_clock: Any
) -> None:
    autotuned = Plan(backend="inductor", mode="max-autotune-no-cudagraphs")

    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            spent_clock.now += 0 if job.task != "try" else 95 if job.plan == autotuned else 5
            return super().run(job, limits, on_stage)

    table, named = Slow(), (autotuned, Plan(threads=1), Plan(threads=9), Plan(threads=3))
    table.known[autotuned] = (2.0, 90.0, GOOD)
    run_study(request(plans=named, budget_s=150, successor=lambda _: INDUCTOR), storage, table, Listener())
    assert table.list_tried() == [*named], "of its 95 s, 90 were for trying kernels, of which the next plan tries none"


@pytest.mark.parametrize(("budget_s", "limit_s"), [(900.0, 850.0), (None, 121.0)])
def test_a_plan_for_which_nothing_else_waits_has_the_whole_budget(
    budget_s: float | None, limit_s: float, storage: Storage
) -> None:
    heard: dict[str, float] = {}

    class Notes(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            heard[f"{job.task} {job.plan}"] = limits.time_s
            return super().run(job, limits, on_stage)

    run_study(request(10**5, effort="quick", budget_s=budget_s), storage, Notes(), Listener())
    assert heard["try inductor"] == pytest.approx(limit_s, rel=0.06)


def test_a_compile_time_out_ends_compiling_alone_and_its_trial_is_not_repeated(storage: Storage) -> None:
    heard: list[Limits] = []

    class Notes(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            heard.append(limits)
            return super().run(job, limits, on_stage)

    table = Notes()
    table.known[INDUCTOR] = Failure(FailureKind.TIMED_OUT, "compile", "passed the compile time-out of 1e-06 s")
    for seconds in (1e-6, 1e-6, 50.0):
        asked = replace(request(effort="quick"), plans=(INDUCTOR,), compile_timeout_s=seconds)
        run_study(asked, storage, table, Listener())
    tried = [limits for limits in heard if limits.compile_s < math.inf]
    assert [limits.compile_s for limits in tried] == [1e-6, 50.0]  # the second request learns nothing from another try
    assert tried[1].time_s >= 1850  # the limit of a trial is for the rest


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (FullGraph("print, at a.py:9"), GraphBreakError, r"the graph breaks: print, at a\.py:9\. torchwise explain"),
        (Failure(FailureKind.DIED, "compile", "SIGSEGV"), UnsupportedError, "is not known: .*SIGSEGV"),
        (FullGraph(""), None, ""),
    ],
)
def test_a_model_that_must_be_one_graph_is_refused_before_the_search(
    storage: Storage, answer: FullGraph | Failure, error: type[Exception] | None, said: str
) -> None:
    class Gate(Table):
        def run(self, job: Any, limits: Limits, on_stage: Any) -> str | Failure:
            if isinstance(job, FullGraphJob):
                return answer if isinstance(answer, Failure) else codec.to_json(answer)
            return super().run(job, limits, on_stage)

    table = Gate()
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    asked = request(plans=(INDUCTOR,), fullgraph=True)
    with pytest.raises(error, match=said) if error else nullcontext():
        run_study(asked, storage, table, Listener())
    assert table.list_tried() == ([] if error else [INDUCTOR])


@pytest.mark.parametrize(("wait", "least"), [(False, 2), (True, 93)])
def test_a_budget_holds_the_whole_command(storage: Storage, spent_clock: Any, wait: bool, least: float) -> None:
    """Profiling counts, waiting counts unless the user says otherwise, and the last trial is ended in time."""
    heard: list[Limits] = []

    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            heard.append(limits)
            for stage, seconds in ((WAITING, 91), ("run eager", 7)) if job.task == "inspect" else ():
                on_stage(stage)
                spent_clock.now += seconds
            return super().run(job, limits, on_stage)

    table = Slow()
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    run_study(request(plans=(INDUCTOR,), budget_s=100, wait=wait), storage, table, Listener())
    assert table.list_tried() == [INDUCTOR]
    profiled, tried = heard[:2]
    assert profiled.end_s == (math.inf if wait else 100)
    assert tried.time_s == pytest.approx(least, abs=1e-6)
    assert tried.end_s == pytest.approx(math.inf if wait else least)


def test_a_trial_that_waited_too_long_is_tried_again(storage: Storage, table: Table) -> None:
    table.known[INDUCTOR] = Failure(FailureKind.INTERFERED, "load", "waited 9 s for another Torchwise process")
    run_study(request(plans=(INDUCTOR,), budget_s=10), storage, table, Listener())
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(plans=(INDUCTOR,)), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


class Profiles(Table):
    """Profiles for as long as it may, and waits before that."""

    def __init__(self, clock: Any, waits_s: float, kind: FailureKind) -> None:
        super().__init__()
        self.clock, self.waits_s, self.kind = clock, waits_s, kind

    def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
        self.ran.append((job.task, job.plan))
        for stage, seconds in ((WAITING, self.waits_s), ("profile", limits.time_s - self.waits_s)):
            on_stage(stage)
            self.clock.now += seconds
        return Failure(self.kind, "profile", "passed its limit")


class ProfilesForAll(Table):
    """Answers when the time of the inspection is just over."""

    def __init__(self, clock: Any) -> None:
        super().__init__()
        self.clock = clock
        self.known[INDUCTOR] = (2.0, 10.0, GOOD)

    def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
        self.clock.now += limits.time_s if job.task == "inspect" else 0
        return super().run(job, limits, on_stage)


@pytest.mark.parametrize("kind", [FailureKind.INTERFERED, FailureKind.TIMED_OUT])
def test_profiling_ends_with_the_budget_which_is_no_failure_of_the_model(
    storage: Storage, spent_clock: Any, kind: FailureKind
) -> None:
    table = Profiles(spent_clock, 8.0, kind)
    with pytest.raises(BudgetError) as left:
        run_study(request(budget_s=10), storage, table, Listener())
    assert str(left.value) == (
        "the budget of 10 s is spent, of which 8.00 s went by waiting for another Torchwise process (--wait, or "
        "wait=True, does not count that), and the model is not profiled: it ended in stage 'profile'. Give a larger "
        "budget"
    )
    assert spent_clock.now == 10
    assert [task for task, _ in table.ran] == ["inspect"], "no worker is started after that"


def test_a_model_that_takes_longer_than_profiling_may_has_failed_and_not_the_budget(
    storage: Storage, spent_clock: Any
) -> None:
    with pytest.raises(BaselineError):
        run_study(request(budget_s=1e6), storage, Profiles(spent_clock, 0.0, FailureKind.TIMED_OUT), Listener())


def test_a_plan_that_the_budget_ended_is_tried_by_the_next_search(storage: Storage, spent_clock: Any) -> None:
    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task != "try":
                return super().run(job, limits, on_stage)
            on_stage("compile")
            spent_clock.now += limits.time_s
            return Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 10 s")

    study = run_study(request(plans=(INDUCTOR,), budget_s=10), storage, Slow(), Listener())
    (trial,) = study.trials
    assert why(trial, study) == "not tried to the end, but ended in compile: the budget of 10 s is spent"
    assert study.excluded == ("whatever else: the budget of 10 s is spent",)
    table = Table()
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(plans=(INDUCTOR,)), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


def test_a_further_process_that_the_budget_ended_takes_nothing_from_a_verified_plan(
    storage: Storage, spent_clock: Any
) -> None:
    class Ends(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task != "warm":
                return super().run(job, limits, on_stage)
            spent_clock.now += limits.time_s
            return Failure(FailureKind.TIMED_OUT, "warm compile", "passed its limit")

    table = Ends()
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(plans=(INDUCTOR,), budget_s=10), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR
    assert study.decision.warm_s is None


def test_the_time_before_a_study_counts_too(storage: Storage, spent_clock: Any) -> None:
    spent_clock.now = 100.0
    heard: list[Limits] = []

    class Hears(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            heard.append(limits)
            return super().run(job, limits, on_stage)

    run_study(request(plans=(INDUCTOR,), budget_s=10, begun=93.0), storage, Hears(), Listener())
    assert heard[0].end_s == pytest.approx(3.0)


def test_looking_at_the_model_is_time_spent_and_no_part_of_the_time_of_an_effort(
    storage: Storage, spent_clock: Any
) -> None:
    class Looks(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            for stage, seconds in ((WAITING, 1000), ("run eager" if job.task == "inspect" else "compile", 7)):
                on_stage(stage)
                spent_clock.now += seconds
            return super().run(job, limits, on_stage)

    table = Looks()
    study = run_study(request(plans=(INDUCTOR,)), storage, table, Listener())
    assert table.list_tried() == [INDUCTOR]
    assert study.seconds == 7 * len(table.ran) == 14


def test_targets_of_one_structure_keep_their_decisions(storage: Storage, table: Table) -> None:
    """They share their measurements. Each is decided for by its own calls."""
    many, few = request(), Request(WorkloadSpec("zoo:another", calls=10))
    first, second = (run_study(asked, storage, table, Listener()) for asked in (many, few))
    assert (second.id, second.workload, storage.get_study(first.id)) == (first.id, few.workload, second)
    assert {str(d.workload.target): d.plan for d in storage.decisions()} == {
        "zoo:anything": INDUCTOR,
        "zoo:another": EAGER,
    }
    assert storage.get_study(first.id, "zoo:anything").decision == first.decision


def test_a_model_is_profiled_once_for_all_of_its_targets(storage: Storage, table: Table) -> None:
    known = run_study(request(), storage, table, Listener()).inspection.identity
    table.ran.clear()
    other = Request(WorkloadSpec("zoo:another", calls=10**6), identity=known)
    study = run_study(other, storage, table, Listener())
    assert (table.ran, study.inspection.identity) == ([], known)


def test_targets_of_one_structure_are_measured_anew_together(storage: Storage, table: Table) -> None:
    """A decision whose measurements are forgotten goes. The measurements so far are enough for the others."""
    other = Request(WorkloadSpec("zoo:another", calls=10**6))
    for asked in (request(), replace(other, fresh=True)):
        study = run_study(asked, storage, table, Listener())
    assert storage.decisions() == [study.decision]
    table.ran.clear()
    again = run_study(request(), storage, table, Listener())
    assert (again.id, table.list_tried(), len(storage.decisions())) == (study.id, [], 2)


def test_called_ten_times_it_stays_with_eager_and_compiles_nothing(storage: Storage, table: Table) -> None:
    study = run_study(request(calls=10), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER
    assert INDUCTOR not in table.list_tried()
    assert "10 calls" in study.decision.reason
    assert any("inductor" in line for line in study.excluded)


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("again", [False, True])
def test_only_what_was_stored_before_is_said_to_be_decided_from(storage: Storage, table: Table, again: bool) -> None:
    if again:
        run_study(request(), storage, table, Listener())
    listener = Notes()
    run_study(request(calls=10**8 if again else 10), storage, table, listener)
    assert any("decided from what is stored" in note for note in listener.notes) is again, listener.notes


def test_where_nothing_is_faster_eager_wins(storage: Storage, table: Table) -> None:
    table.known[INDUCTOR] = (0.8, 10.0, GOOD)
    study = run_study(request(), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER


def test_a_wrong_candidate_is_never_decided_for_however_fast(storage: Storage, table: Table) -> None:
    table.known[INDUCTOR] = (9.0, 1.0, BAD)
    study = run_study(request(), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER
    assert next(t for t in study.trials if t.plan == INDUCTOR).state is TrialState.COMPLETE


def test_a_candidate_that_fails_from_warm_caches_is_not_decided_for(storage: Storage, table: Table) -> None:
    class Cold(Table):
        def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
            if job.task == "warm":
                return Failure(FailureKind.DIED, "warm compile", "SIGSEGV")
            return super().run(job, limits, on_stage)

    cold = Cold()
    cold.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(), storage, cold, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER
    assert "warm caches" in next(t for t in study.trials if t.plan == INDUCTOR).reason


def test_failures_of_every_kind_are_kept_and_the_search_goes_on(storage: Storage, table: Table) -> None:
    for kind in FailureKind:
        table.known[Plan(threads=10 + len(table.known))] = Failure(kind, "compile", "planted")
    plans = (*[plan for plan in table.known if plan != INDUCTOR], INDUCTOR)
    study = run_study(request(plans=plans), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR
    kinds = [t.failure.kind for t in study.trials if t.failure]
    assert kinds == list(FailureKind)


def test_the_same_request_again_reuses_the_decision(storage: Storage, table: Table) -> None:
    first = run_study(request(), storage, table, Listener())
    table.ran.clear()
    again = run_study(request(), storage, table, Listener())
    assert table.list_tried() == []
    assert again.decision == first.decision


def test_what_was_timed_on_a_busy_machine_is_timed_anew(storage: Storage, table: Table) -> None:
    """Back then all took 100 times as long, and the plan seemed no faster. Eager's time now tells."""
    busy = Slowed(100)
    assert run_study(request(), storage, busy, Listener()).decision.plan == EAGER  # type: ignore[union-attr]
    study = run_study(request(), storage, table, Listener())
    assert INDUCTOR in table.list_tried()
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR
    assert study.decision.baseline_s == pytest.approx(EAGER_S, rel=0.02)
    table.ran.clear()
    run_study(request(), storage, busy, Listener())
    assert busy.list_tried().count(INDUCTOR) == 1, "a machine that is busy now is no reason"


class Slowed(Table):
    """A machine on which every plan takes so many times as long."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times
        self.default = (1.0, 0.1, GOOD)

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        told = super().run(job, limits, on_stage)
        if job.task == "inspect" and isinstance(told, str):
            seen = codec.from_json(told, Inspection)
            return codec.to_json(replace(seen, measurement=self.slow_down(seen.measurement)))
        if job.task == "try" and isinstance(told, str):
            found = codec.from_json(told, Attempt)
            assert found.measurement is not None
            return codec.to_json(replace(found, measurement=self.slow_down(found.measurement)))
        return told

    def slow_down(self, found: Measurement) -> Measurement:
        both = (tuple(seconds * self.times for seconds in side) for side in (found.candidate_s, found.baseline_s))
        return replace(found, **dict(zip(("candidate_s", "baseline_s"), both, strict=True)))


def test_fresh_measures_anew(storage: Storage, table: Table) -> None:
    run_study(request(), storage, table, Listener())
    table.ran.clear()
    run_study(request(fresh=True), storage, table, Listener())
    assert INDUCTOR in table.list_tried()


def test_other_calls_decide_anew_from_what_is_stored(storage: Storage, table: Table) -> None:
    run_study(request(), storage, table, Listener())
    table.ran.clear()
    study = run_study(request(calls=10), storage, table, Listener())
    assert table.list_tried() == []
    assert study.decision is not None
    assert study.decision.plan == EAGER
    assert study.decision.workload.calls == 10


def test_an_interrupted_study_keeps_what_is_finished_and_goes_on(storage: Storage, table: Table) -> None:
    plans = (Plan(threads=7), INDUCTOR)
    table.known[INDUCTOR] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_study(request(plans=plans), storage, table, Listener())
    kept = storage.get_study(1)
    assert kept.state is StudyState.INTERRUPTED
    assert [t.plan for t in kept.trials] == [Plan(threads=7)]
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    table.ran.clear()
    study = run_study(request(plans=plans), storage, table, Listener())
    assert table.list_tried() == [INDUCTOR]
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


def test_a_changed_model_makes_the_decision_stale_and_its_plan_is_proven_first(storage: Storage, table: Table) -> None:
    run_study(request(), storage, table, Listener())
    table.structure = "another"
    table.ran.clear()
    listener = Notes()
    run_study(request(), storage, table, listener)
    assert table.list_tried()[0] == INDUCTOR
    assert any("structure of weights changed" in note for note in listener.notes)


def test_another_machine_makes_the_decision_stale(
    storage: Storage, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(request(), storage, table, Listener())
    here = environment.detect("cpu")
    monkeypatch.setattr(environment, "detect", lambda device: replace(here, torch="9.9.9"))
    table.ran.clear()
    listener = Notes()
    study = run_study(request(), storage, table, listener)
    assert table.list_tried()[0] == INDUCTOR
    assert study.id != 1
    assert any(f"torch: {here.torch} there, 9.9.9 here" in note for note in listener.notes)


def test_a_stale_plan_that_cannot_pay_now_is_not_tried(storage: Storage, table: Table) -> None:
    run_study(request(), storage, table, Listener())
    table.structure = "another"
    table.ran.clear()
    run_study(request(calls=10), storage, table, Listener())
    assert INDUCTOR not in table.list_tried()


def test_a_search_that_its_budget_ended_goes_on_when_asked_again(storage: Storage, spent_clock: Any) -> None:
    table = ProfilesForAll(spent_clock)
    run_study(request(budget_s=10), storage, table, Listener())
    study = run_study(request(), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


def test_a_plan_the_user_did_not_allow_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        InputError, match="bf16 is lower-precision, but only up to same-precision is allowed: --allow lower-precision"
    ):
        request(plans=(Plan(precision="bf16"),))


def test_a_misspelt_option_is_named_and_not_called_forbidden() -> None:
    misspelt, unknown = (INDUCTOR.with_choice("options", (name, True)) for name in ("max_autotun", "epilogue_fusion"))
    with pytest.raises(InputError, match=r"option 'max_autotun' does not exist in torch .*; did you mean max_autotune"):
        request(plans=(misspelt,))
    with pytest.raises(
        InputError, match="is substituted, but only up to same-precision is allowed: --allow substituted"
    ):
        request(plans=(unknown,))


def test_named_plans_are_decided_among_themselves(storage: Storage, table: Table) -> None:
    run_study(request(), storage, table, Listener())
    study = run_study(request(plans=(Plan(threads=9),)), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER


def test_named_plans_are_all_tried_for_as_long_as_a_thorough_search_would(storage: Storage, spent_clock: Any) -> None:
    class Slow(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task == "inspect":
                assert limits.time_s == INSPECTIONS * EFFORTS["quick"].trial_s, "which is about the model, and no plan"
            if job.task == "try":
                assert budget or limits.time_s >= EFFORTS["thorough"].trial_s
                on_stage("compile")
                spent_clock.now += 1000
            return super().run(job, limits, on_stage)

    named = (INDUCTOR, Plan(threads=1), Plan(threads=9))
    for budget, tried in ((None, 3), (1500, 2)):
        table = Slow()
        run_study(request(effort="quick", plans=named, budget_s=budget, fresh=True), storage, table, Listener())
        assert len(table.list_tried()) == tried


def test_a_gain_within_a_tie_leaves_eager_alone(storage: Storage, table: Table) -> None:
    table.known[Plan(threads=9)] = (1.015, 0.0, GOOD)
    study = run_study(request(plans=(Plan(threads=9),)), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == EAGER


def test_a_stale_plan_that_is_not_allowed_now_is_not_tried(storage: Storage, table: Table) -> None:
    from torchwise.plan import Numerics

    half = Plan(precision="bf16")
    table.known[half] = (4.0, 0.0, GOOD)
    run_study(request(allow=Numerics.LOWER_PRECISION, plans=(half,)), storage, table, Listener())
    table.structure = "another"
    table.ran.clear()
    run_study(request(), storage, table, Listener())
    assert half not in table.list_tried()


def test_a_plain_model_that_fails_ends_the_study(storage: Storage) -> None:
    class Broken(Table):
        def inspect(self) -> Failure:  # type: ignore[override]
            return Failure(FailureKind.DIED, "run eager", "SIGSEGV")

    with pytest.raises(BaselineError, match="died in run eager: SIGSEGV"):
        run_study(request(), storage, Broken(), Listener())
    assert storage.list_studies() == []


def test_the_budget_ends_the_search_and_says_so(storage: Storage, spent_clock: Any) -> None:
    table = ProfilesForAll(spent_clock)
    study = run_study(request(budget_s=10), storage, table, Listener())
    assert table.list_tried() == []
    assert study.state is StudyState.DECIDED
    assert any("budget" in line for line in study.excluded)


@pytest.mark.parametrize(
    ("options", "said"), [({"effort": "heroic"}, "effort is 'heroic'"), ({"budget_s": 0}, "budget is 0")]
)
def test_bad_requests_are_refused_with_value_and_rule(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        request(**options)


def test_the_listener_hears_everything_in_order(storage: Storage, table: Table) -> None:
    heard: list[str] = []

    class Ears:
        def __getattr__(self, name: str) -> object:
            return lambda *args: heard.append(name)

    run_study(request(plans=(INDUCTOR,)), storage, table, Ears())  # type: ignore[arg-type]
    begin = ["start_search", "start_inspection", "finish_inspection"]
    assert heard == [*begin, "expect_trials", "start_trial", "finish_trial", "change_leader"]


MAX_AUTOTUNE = INDUCTOR.with_choice("mode", "max-autotune-no-cudagraphs")


@pytest.fixture
def stopped(storage: Storage, table: Table) -> Study:
    """A search for many calls that stopped a plan early, as it could no longer lead."""
    table.known[MAX_AUTOTUNE] = (2.0, 300.0, GOOD)
    table.known[INDUCTOR] = (1.5, 10.0, GOOD)
    leads = request(calls=10**8, plans=(MAX_AUTOTUNE,))
    run_study(leads, storage, table, Listener())
    study = run_study(request(calls=10**8), storage, table, Listener())
    trial = next(trial for trial in study.trials if trial.plan == INDUCTOR)
    assert trial.state is TrialState.PRUNED
    table.ran.clear()
    return study


@pytest.mark.parametrize("changed", [{"calls": 20_000}, {"plans": (INDUCTOR,)}], ids=["fewer calls", "named"])
def test_a_plan_that_was_stopped_for_what_was_asked_then_is_measured_for_what_is_asked_now(
    storage: Storage, table: Table, stopped: Study, changed: dict[str, object]
) -> None:
    study = run_study(request(**changed), storage, table, Listener())  # type: ignore[arg-type]
    assert study.id == stopped.id
    assert INDUCTOR in table.list_tried()
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


@pytest.mark.usefixtures("stopped")
def test_a_plan_that_would_be_stopped_again_is_not_tried_again(storage: Storage, table: Table) -> None:
    run_study(request(calls=10**8), storage, table, Listener())
    assert INDUCTOR not in table.list_tried()


def test_what_ran_out_of_time_is_tried_again_where_it_has_more(
    storage: Storage, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.known[INDUCTOR] = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 0 s")
    monkeypatch.setitem(EFFORTS, "quick", replace(EFFORTS["quick"], trial_s=-1.0))
    monkeypatch.setattr("torchwise.study.search_loop.CALLS_PER_TRIAL", 0)
    for _ in range(2):
        run_study(request(effort="quick"), storage, table, Listener())
    assert table.list_tried().count(INDUCTOR) == 1
    table.known[INDUCTOR] = (2.0, 10.0, GOOD)
    study = run_study(request(effort="standard"), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


def test_what_runs_out_of_time_sooner_than_it_should_is_tried_once_a_search(storage: Storage, table: Table) -> None:
    table.known[INDUCTOR] = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 0 s")
    run_study(request(), storage, table, Listener())
    assert table.list_tried().count(INDUCTOR) == 1


class EndsInWarmStarts(Table):
    """The budget ends in every warm start."""

    def __init__(self, clock: Any) -> None:
        super().__init__()
        self.clock = clock
        self.known[INDUCTOR] = (2.0, 10.0, GOOD)

    def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
        if job.task != "warm":
            return super().run(job, limits, on_stage)
        self.clock.now += 1000
        return Failure(FailureKind.OUT_OF_BUDGET, "compile", "the budget is spent")


@pytest.mark.parametrize("restarts", [1, 10])
def test_a_plan_whose_warm_start_the_budget_left_out_is_tried_again_if_that_is_priced(
    storage: Storage, table: Table, spent_clock: Any, restarts: int
) -> None:
    workload = WorkloadSpec("zoo:anything", calls=100_000, restarts=restarts)
    ended = EndsInWarmStarts(spent_clock)
    study = run_study(Request(workload, plans=(INDUCTOR,), budget_s=100), storage, ended, Listener())
    assert study.decision is not None
    assert (study.decision.plan, study.decision.warm_s) == (INDUCTOR, None)
    again = run_study(Request(workload, plans=(INDUCTOR,)), storage, table, Listener())
    assert again.decision is not None
    assert table.list_tried() == ([INDUCTOR] if restarts > 1 else [])
    assert again.decision.warm_s == (2.5 if restarts > 1 else None)


@pytest.mark.parametrize("ends_in", ["inspect", "try"])
def test_a_plan_without_its_warm_start_counts_if_the_budget_ends_before_it_is_repeated(
    storage: Storage, spent_clock: Any, ends_in: str
) -> None:
    class Ends(Table):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            spent_clock.now += 1000 * (job.task == ends_in)
            return super().run(job, limits, on_stage)

    workload = WorkloadSpec("zoo:anything", calls=100_000, restarts=10)
    run_study(Request(workload, budget_s=100), storage, EndsInWarmStarts(spent_clock), Listener())
    table = Ends()
    table.known[INDUCTOR] = Failure(FailureKind.OUT_OF_BUDGET, "compile", "the budget of 20 s is spent")
    study = run_study(Request(workload, budget_s=20), storage, table, Listener())
    assert table.list_tried() == ([INDUCTOR] if ends_in == "try" else [])
    assert study.decision is not None
    assert study.decision.plan == INDUCTOR


# ---- more processes


class Fickle(Table):
    """A plan with another speed in each process: the given ones, and the last of them from then on."""

    def __init__(self, *speeds: float | Failure) -> None:
        super().__init__()
        self.speeds = list(speeds)
        self.starts: list[tuple[str, set[str]]] = []

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        if job.task in ("try", "warm"):
            here = Path(job.cache_dir)
            self.starts.append((job.task, {path.name for path in here.iterdir()}))
            (here / "compiled").touch()
            assert job.baseline_s == EAGER_S
            assert "module" in job.traits
            speed = self.speeds.pop(0) if len(self.speeds) > 1 else self.speeds[0]
            self.known[job.plan] = speed if isinstance(speed, Failure) else (speed, 10.0, GOOD)
        return super().run(job, limits, on_stage)


def search(storage: Storage, table: Table, effort: str = "standard", listener: Listener | None = None) -> Trial:
    """Return the trial of a plan that compiles, from a search among named plans."""
    asked = request(ENDLESS, plans=(INDUCTOR,), effort=effort)
    return run_study(asked, storage, table, listener or Listener()).trials[0]


@pytest.mark.parametrize(("effort", "processes"), [("quick", 3), ("standard", 5), ("thorough", 7)])
def test_a_plan_that_processes_contradict_is_timed_in_as_many_as_the_effort_allows(
    storage: Storage, effort: str, processes: int
) -> None:
    table = Fickle(1.6, 0.8, 1.5, 0.7, 1.6, 0.8, 1.5, 0.7)
    trial = search(storage, table, effort)
    (study,) = storage.list_studies()
    decision = storage.get_study(study.id).decision
    assert len(table.ran) == processes + 1, "and the look at the plain model"
    assert [one.speedup.mid for one in trial.processes] == pytest.approx(
        [1.6, 0.8, 1.5, 0.7, 1.6, 0.8, 1.5][:processes]
    )
    assert decision is not None
    assert decision.plan == EAGER, "what its processes do not agree on is not decided for"


def test_a_plan_that_is_plainly_faster_has_no_more_processes_than_its_warm_start(storage: Storage) -> None:
    assert len(search(storage, Fickle(2.0, 2.02), "thorough").processes) == 2


class Searched(Table):
    """A search among plans of several backends, all of which beat eager."""

    def __init__(self, **speeds: float) -> None:
        super().__init__()
        self.known = {Plan(backend=name): (speed, 1.0, GOOD) for name, speed in speeds.items()}

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        answer = super().run(job, limits, on_stage)
        if job.task == "try" and isinstance(answer, str):
            Path(job.cache_dir, "compiled").touch()
        return answer

    def inspect(self) -> str:
        found = codec.from_json(super().inspect(), Inspection)
        return codec.to_json(replace(found, traits=found.traits | {"gemm"}))

    def expect_starts(self, *, all_twice: bool) -> dict[Plan, int]:
        """Return how often each plan is started if only those that lead are started twice, or all that beat eager."""
        expected, best = dict[Plan, int](), 1.0
        for plan in self.list_tried():
            speed = self.speed(plan)
            expected[plan] = 1 + (speed > (1.0 if all_twice else best) and plan.backend != "eager")
            best = max(best, speed)
        return expected


@pytest.mark.parametrize(("restarts", "is_local"), [(1, True), (9, True), (1, False)])
@pytest.mark.parametrize("best", ["openvino", "onnxruntime", "inductor"])
def test_only_a_plan_that_leads_is_started_twice_unless_restarts_have_a_price_or_its_caches_stay_elsewhere(
    storage: Storage, restarts: int, is_local: bool, best: str
) -> None:
    speeds = {"openvino": 2.85, "onnxruntime": 2.78, "inductor": 2.71}  # no two are tied, and none is pruned
    table = Searched(**{**speeds, best: 3.0})
    workload = WorkloadSpec("zoo:anything", calls=ENDLESS, restarts=restarts)
    study = run_study(Request(workload), storage, table, Listener(), None if is_local else detect("cpu"))
    started = Counter(plan for task, plan in table.ran if task in ("try", "warm"))
    all_twice = restarts > 1 or not is_local
    assert started == table.expect_starts(all_twice=all_twice)
    assert all_twice or 1 in [started[Plan(backend=name)] for name in speeds]
    assert study.decision is not None
    assert (study.decision.plan, study.decision.warm_s) == (Plan(backend=best), 0.25)


def test_a_plan_that_leads_once_another_has_failed_is_started_again_before_it_is_chosen(storage: Storage) -> None:
    class Fails(Searched):
        def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
            if job.task == "warm" and job.plan == INDUCTOR and ("warm", INDUCTOR) in self.ran:
                return Failure(FailureKind.DIED, "measure", "SIGSEGV")
            return super().run(job, limits, on_stage)

    table = Fails(inductor=1.04, openvino=1.03)
    study = run_study(request(ENDLESS), storage, table, Listener())
    other = Plan(backend="openvino")
    assert study.decision is not None
    assert study.decision.plan == other
    assert len(next(trial for trial in study.trials if trial.plan == other).processes) > 1


def test_one_process_that_says_eighty_times_is_not_believed_where_the_next_says_six(storage: Storage) -> None:
    trial = search(storage, Fickle(79.5, 6.0), "thorough")
    assert len(trial.processes) == 7
    assert trial.speedup is not None
    assert trial.speedup.low < 6.0


def test_further_processes_start_from_the_caches_of_the_trial(storage: Storage) -> None:
    table = Fickle(1.06, 1.05)
    search(storage, table)
    assert table.starts == [("try", set()), *[("warm", {"compiled"})] * 4]


def test_a_plan_that_fails_in_a_further_process_is_not_decided_for(storage: Storage) -> None:
    trial = search(storage, Fickle(1.06, 1.05, Failure(FailureKind.DIED, "measure", "SIGSEGV")))
    assert trial.state is TrialState.FAIL
    assert trial.reason == "died in measure: in one more process: SIGSEGV"


def test_the_listener_hears_what_each_process_found(storage: Storage) -> None:
    heard: list[int] = []

    class Heard(Listener):
        def finish_repeat(self, trial: Trial) -> None:
            heard.append(len(trial.processes))

    search(storage, Fickle(1.06, 1.05), listener=Heard())
    assert heard == [3, 4, 5]


def test_processes_that_are_stored_are_not_started_again(storage: Storage) -> None:
    first = search(storage, Fickle(1.06, 1.05))
    again = Fickle(9.0)
    assert search(storage, again) == first
    assert [task for task, _ in again.ran] == ["inspect"]


# ---- duels


class Dueling(Table):
    """Beside each other plans run as fast as `true` says, against the word of their trials."""

    def __init__(self, **true: float) -> None:
        super().__init__()
        self.true = true
        self.caches: list[set[str]] = []
        self.expected_s: list[tuple[float | None, float | None]] = []
        self.most = 0
        self.limit_s: float | None = None
        self.known = {plan: (speedup, 10.0, GOOD) for plan, speedup in zip(PLANS, (2.0, 1.98, 1.96, 1.2), strict=True)}

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
        here = Path(job.cache_dir)
        if job.task == "try":
            self.limit_s = limits.time_s
            (here / job.plan.id).write_text("compiled")
            self.most = max(self.most, len(list(here.parent.iterdir())))
        if job.task == "duel":
            self.caches.append({path.name for path in here.iterdir()})
            self.expected_s.append(job.expected_s)
            assert "module" in job.traits
            assert self.limit_s in (None, limits.time_s / 2), "two plans compile"
        found = super().run(job, limits, on_stage)
        if job.task == "duel" and not self.true:
            return Failure(FailureKind.OUT_OF_MEMORY, "compile", "both at once")
        return found

    def speed(self, plan: Plan | None) -> float:
        assert plan is not None
        return self.true.get(f"t{plan.threads}", 1.0)

    def list_compared(self) -> list[Plan]:
        return [plan for task, plan in self.ran if task == "duel"]


PLANS = tuple(Plan(threads=count) for count in (1, 2, 3, 4))
ENDLESS = 10**8


def test_plans_that_trials_cannot_tell_apart_are_timed_beside_each_other(storage: Storage) -> None:
    table = Dueling(t1=2.0, t2=2.06, t3=1.9)
    study = run_study(request(ENDLESS, plans=PLANS), storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == PLANS[1]
    assert table.list_compared() == [PLANS[1], PLANS[2]], "the slowest is no matter for a duel"
    second, third = study.trials[1].duel, study.trials[2].duel
    assert second is not None
    assert third is not None
    assert second.measurement is not None
    assert (second.rival, third.rival) == (PLANS[0], PLANS[1]), "who won meets the next"
    assert second.measurement.speedup.mid == pytest.approx(1.03)
    assert "Timed beside" in study.decision.reason
    assert table.expected_s[0] == pytest.approx((EAGER_S / 1.98, EAGER_S / 2.0)), "as in their trials"


def test_what_another_process_found_in_the_meantime_is_what_counts(storage: Storage) -> None:
    heard: list[Duel | None] = []

    class Heard(Listener):
        def finish_comparison(self, trial: Trial) -> None:
            heard.append(trial.duel)

    class Outrun(Dueling):
        def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
            if job.task == "duel":
                (study,) = storage.list_studies()
                storage.keep_duel(study.id, job.plan, Duel(PLANS[0], seconds=77.0))
            return super().run(job, limits, on_stage)

    run_study(request(ENDLESS, plans=PLANS[:2]), storage, Outrun(t2=9.0), Heard())
    assert [duel and duel.seconds for duel in heard] == [77.0]


def test_caches_lie_where_they_are_told_to(tmp_path: Path) -> None:
    with Caches(within=tmp_path) as caches:
        assert Path(caches.new(PLANS[0])).is_relative_to(tmp_path)
        caches.new(PLANS[0])
    assert not list(tmp_path.iterdir())


def test_a_study_has_as_many_duels_as_its_effort_allows(storage: Storage) -> None:
    for effort, duels in (("quick", 1), ("quick", 0), ("standard", 1), ("thorough", 0)):
        table = Dueling(t1=2.0, t2=2.06, t3=1.9)
        study = run_study(request(ENDLESS, plans=PLANS, effort=effort), storage, table, Listener())
        assert len(table.list_compared()) == duels, "what is stored is not held again"
        assert study.decision is not None
        assert study.decision.plan == PLANS[1]


def test_duels_are_held_only_where_they_are_worth_their_time(storage: Storage) -> None:
    table = Dueling(t2=9.0)
    assert run_study(request(3_000, plans=PLANS[:3]), storage, table, Listener()).decision is not None
    assert not table.list_compared()


def test_a_duel_that_fails_costs_nothing_else_and_is_not_begun_again(storage: Storage) -> None:
    for effort, duels in (("quick", 1), ("quick", 0), ("standard", 1), ("standard", 0)):
        table = Dueling()
        study = run_study(request(ENDLESS, plans=PLANS, effort=effort), storage, table, Listener())
        assert study.decision is not None
        assert study.decision.plan == PLANS[0]
        assert len(table.list_compared()) == duels
        failures = {str(trial.duel.failure) for trial in study.trials if trial.duel}
        assert failures == {"out of memory in compile: both at once"}


def test_where_no_device_is_left_for_a_duel_the_trials_decide(storage: Storage) -> None:
    class Lost(Dueling):
        def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:
            if job.task == "duel":
                raise UnsupportedError("no node is left")
            return super().run(job, limits, on_stage)

    heard: list[str] = []

    class Notes(Listener):
        def note(self, text: str) -> None:
            heard.append(text)

    study = run_study(request(ENDLESS, plans=PLANS), storage, Lost(), Notes())
    assert study.state is StudyState.DECIDED
    assert study.decision is not None
    assert study.decision.plan == PLANS[0]
    assert heard[0].endswith("could not be timed beside eager + 1 thread: no node is left")


def test_a_spent_budget_holds_no_duel(storage: Storage, spent_clock: Any) -> None:
    class Slow(Dueling):
        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            on_stage("compile")
            spent_clock.now += 10
            return super().run(job, limits, on_stage)

    table = Slow(t2=9.0)
    run_study(request(ENDLESS, plans=PLANS[:2], budget_s=29), storage, table, Listener())
    assert len(table.list_tried()) == 2
    assert not table.list_compared()


@pytest.mark.parametrize(
    ("task", "effort", "stage"),
    [("duel", "quick", "start"), ("warm", "standard", "start"), ("warm", "standard", WorkerStage.MEASURE_COLD)],
)
def test_a_budget_around_the_search_ends_what_would_begin_again_and_again(
    storage: Storage, task: str, effort: str, stage: str
) -> None:
    class Ended(Dueling):
        begun = 0

        def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
            if job.task != task:
                return super().run(job, limits, on_stage)
            self.begun += 1
            assert self.begun < 5, "it begins the same again"
            return Failure(FailureKind.OUT_OF_BUDGET, stage, "the budget of a benchmark is spent")

    table = Ended(t1=2.0, t2=2.06, t3=1.9)
    asked = request(ENDLESS, plans=PLANS, effort=effort, cold=stage == WorkerStage.MEASURE_COLD)
    study = run_study(asked, storage, table, Listener())
    assert study.decision is not None
    assert study.decision.plan == PLANS[0], "the trials decide"
    assert table.begun == 1


def test_duels_start_from_what_trials_compiled_and_nothing_stays(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    table = Dueling(t1=2.0, t2=2.06, t3=1.9)
    run_study(request(ENDLESS, plans=PLANS, effort="quick"), storage, table, Listener())
    assert table.caches == [{PLANS[0].id, PLANS[1].id}]
    assert table.most == 3, "those of the two best, and the last trial's own"
    assert not list((tmp_path / "here").iterdir())
