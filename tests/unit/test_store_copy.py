"""Studies from one store to another, in all directions: nothing is lost, and copying again copies new ones only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from postgres_server import PostgresServer
from store_samples import (
    FASTER,
    INDUCTOR,
    TUNED,
    a_decision,
    a_ruling,
    a_study,
    an_explanation,
    claim,
    complete_trial,
    create,
    fail_trial,
)
from torchwise.cli.store import store
from torchwise.errors import StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision, Duel, Measurement, Standing, Study, StudyState, TrialState
from torchwise.store import CopyResult, Storage, StudyKey, claims, copy, open_storage, studies


@pytest.fixture(params=["sqlite to sqlite", "sqlite to postgres", "postgres to sqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return the URLs of the two stores."""

    def place(kind: str, name: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"{name}.db")
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.store()

    source, _, target = request.param.partition(" to ")
    return place(source, "source"), place(target, "target")


@pytest.fixture
def source(urls: tuple[str, str]) -> Iterator[Storage]:
    with open_storage(urls[0]) as storage:
        yield storage


@pytest.fixture
def target(urls: tuple[str, str]) -> Iterator[Storage]:
    with open_storage(urls[1]) as storage:
        yield storage


def decide(storage: Storage, study_id: int, plan: Plan = INDUCTOR, **changes: object) -> Decision:
    decision = a_decision(plan, **changes)
    storage.store_outcome(
        study_id, state=StudyState.DECIDED, decision=decision, excluded=["bf16: not allowed"], seconds=2.5
    )
    return decision


def a_full_store(storage: Storage) -> list[Study]:
    """Fill a store with a decided study, one under way and one without trials. Return them, newest first."""
    gone = create(storage, a_study("00" * 8))
    study = create(storage, a_study(created_at=3e9))
    storage.finish_trial(study.id, fail_trial(claim(storage, study.id, Plan(capture="call"))))
    inexact = replace(FASTER, candidate_s=(float("inf"), 1e-300, 0.1))
    storage.finish_trial(study.id, replace(complete_trial(claim(storage, study.id, TUNED)), measurement=inexact))
    other = create(storage, a_study("2d" * 8, "app:h\u00f6he", created_at=2e9))
    claim(storage, other.id)
    storage.finish_trial(other.id, complete_trial(claim(storage, other.id, TUNED)))
    create(storage, a_study("3d" * 8, created_at=1e9))
    decide(storage, other.id, TUNED, identity="2d" * 8)
    decide(storage, study.id)
    storage.delete_study(gone.id)  # so that ids differ
    return [storage.get_study(summary.id) for summary in storage.list_studies()]


def read_studies(storage: Storage) -> list[Study]:
    return [replace(storage.get_study(summary.id), id=0) for summary in storage.list_studies()]


def as_copied(study: Study) -> Study:
    state = StudyState.INTERRUPTED if study.state is StudyState.RUNNING else study.state
    done = tuple(trial for trial in study.trials if trial.state is not TrialState.RUNNING)
    return replace(study, id=0, state=state, trials=done)


def test_all_arrives_as_it_was(source: Storage, target: Storage) -> None:
    full = a_full_store(source)
    done = list(source.copy_to(target))
    assert [(copied.target, copied.is_new, copied.trials) for copied in done] == [
        ("zoo:tutorial.fusion_demo", True, 2),
        ("app:h\u00f6he", True, 1),
        ("zoo:tutorial.fusion_demo", True, 0),
    ]
    assert read_studies(target) == [as_copied(study) for study in full]
    assert target.decisions() == source.decisions()  # in the order in which they were made
    assert read_studies(source) == [replace(study, id=0) for study in full]


def test_copying_again_changes_nothing(source: Storage, target: Storage) -> None:
    a_full_store(source)
    list(source.copy_to(target))
    before = read_studies(target)
    assert {(copied.is_new, copied.trials) for copied in source.copy_to(target)} == {(False, 0)}
    assert read_studies(target) == before
    assert {(copied.is_new, copied.trials) for copied in target.copy_to(source)} == {(False, 0)}


def test_a_copy_that_was_broken_off_is_gone_on_with(source: Storage, target: Storage) -> None:
    full = a_full_store(source)
    next(source.copy_to(target))
    assert len(target.list_studies()) == 1
    assert [copied.is_new for copied in source.copy_to(target)] == [False, True, True]
    assert read_studies(target) == [as_copied(study) for study in full]


def test_a_study_that_fails_half_way_is_not_there(
    source: Storage, target: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_full_store(source)
    with monkeypatch.context() as broken:
        broken.setattr(copy, "_decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(source.copy_to(target))
    assert target.size() == (0, 0)


def test_what_came_since_is_added(source: Storage, target: Storage) -> None:
    study = a_full_store(source)[0]
    list(source.copy_to(target))
    source.finish_trial(study.id, complete_trial(claim(source, study.id, Plan(threads=7))))
    decide(source, study.id, Plan(threads=7))
    first, *_ = source.copy_to(target)
    assert first == CopyResult(study.id, study.workload.target, False, 1)
    assert read_studies(target) == [as_copied(replace(s, id=0)) for s in read_studies(source)]


def test_two_halves_of_one_study_become_one(source: Storage, target: Storage) -> None:
    mine, theirs = create(source), create(target)
    for storage, study, plans in ((target, theirs, (INDUCTOR, TUNED)), (source, mine, (TUNED, EAGER))):
        for plan in plans:
            storage.finish_trial(
                study.id, replace(complete_trial(claim(storage, study.id, plan)), seconds=float(study.id))
            )
    running = claim(target, theirs.id, Plan(threads=9))
    beaten = claim(target, theirs.id, Plan(threads=8))
    source.finish_trial(mine.id, complete_trial(claim(source, mine.id, Plan(threads=8))))
    earlier = decide(source, mine.id, EAGER)
    later = decide(target, theirs.id, TUNED)
    assert [copied.trials for copied in source.copy_to(target)] == [2]
    study = target.get_study(theirs.id)
    assert [trial.plan for trial in study.trials if trial.state.is_finished] == [
        INDUCTOR,
        TUNED,
        EAGER,
        Plan(threads=8),
    ]
    assert running in study.trials
    assert study.decision == later
    target.finish_trial(theirs.id, fail_trial(beaten))  # whoever tried it meanwhile is too late, and not in the way
    assert len(target.get_study(theirs.id).trials) == 5
    assert [copied.trials for copied in target.copy_to(source)] == [1]
    assert source.get_study(mine.id).decision == later != earlier


def test_with_a_newer_decision_come_the_trials_that_it_was_made_from(source: Storage, target: Storage) -> None:
    mine, theirs = create(source), create(target)
    claim(target, theirs.id, Plan(threads=9))  # so that numbers differ
    target.finish_trial(theirs.id, complete_trial(claim(target, theirs.id, TUNED)))
    decide(target, theirs.id, TUNED)
    source.finish_trial(mine.id, fail_trial(claim(source, mine.id, TUNED)))
    decide(source, mine.id, EAGER)
    assert [copied.trials for copied in source.copy_to(target)] == [0]
    running, renewed = target.get_study(theirs.id).trials
    assert (running.state, renewed.state) == (TrialState.RUNNING, TrialState.FAIL)
    assert (renewed.number, renewed.failure) == (1, source.get_study(mine.id).trials[0].failure)
    list(target.copy_to(source))
    assert source.get_study(mine.id).trials[0].state is TrialState.FAIL


def test_of_each_target_the_later_decision_counts(source: Storage, target: Storage) -> None:
    app = WorkloadSpec("app:factory")
    mine, theirs = create(source), create(target)
    decide(source, mine.id, EAGER)
    earlier = decide(target, theirs.id, EAGER, workload=app)
    ours = decide(target, theirs.id, TUNED)
    last = decide(source, mine.id, INDUCTOR, workload=app)
    for _ in range(2):
        list(source.copy_to(target))
        assert target.decisions() == [last, ours]
        assert target.get_study(theirs.id).decision == last != earlier
    list(target.copy_to(source))
    assert source.decisions() == [last, ours]


def test_a_row_that_cannot_be_read_is_copied_all_the_same(source: Storage, target: Storage) -> None:
    study = a_full_store(source)[0]
    source._database.write(lambda c: c.execute(text("UPDATE torchwise_trials SET format = 'torchwise.newer/9'")))
    assert sum(copied.trials for copied in source.copy_to(target)) == 3
    with pytest.raises(StorageError, match=r"has format 'torchwise\.newer/9'"):
        target.get_study(target.list_studies()[0].id)
    assert study.trials


# Rulings and explanations


def read_explanations(storage: Storage) -> list[tuple[str | None, float]]:
    """Return every kept explanation's plan and time, and check that it can be read."""
    found = [(storage.get_explanation(summary.id), summary) for summary in storage.explanations()]
    assert all(whole.created_at == summary.created_at for whole, summary in found)
    return [(summary.plan, summary.created_at) for _, summary in found]


def test_rulings_and_explanations_arrive_as_they_were_and_once(source: Storage, target: Storage) -> None:
    rulings = [a_ruling(TUNED, Standing.PINNED, at=2e9), a_ruling(EAGER, Standing.REJECTED), a_ruling(mode="training")]
    for ruling in rulings:
        source.store_approval(ruling)
    kept = an_explanation(TUNED, created_at=2e9), an_explanation()
    for explanation in kept:
        source.keep_explanation(explanation)
    for _ in range(2):
        assert list(source.copy_to(target)) == []
        assert sorted(target.approvals(), key=repr) == sorted(rulings, key=repr)
        assert [target.get_explanation(summary.id) for summary in target.explanations()] == list(kept)
    ids = [summary.id for summary in target.explanations()]
    list(source.copy_to(target))
    assert [summary.id for summary in target.explanations()] == ids


def test_of_rulings_and_explanations_of_one_plan_the_later_counts(source: Storage, target: Storage) -> None:
    earlier, later = a_ruling(by="ann"), a_ruling(by="bob", standing=Standing.REJECTED, at=2e9)
    source.store_approval(earlier)
    target.store_approval(later)
    source.store_approval(replace(later, plan=TUNED))
    target.store_approval(replace(earlier, plan=TUNED))
    source.keep_explanation(an_explanation(created_at=3e9))
    target.keep_explanation(an_explanation())
    for one, other in ((source, target), (target, source)):
        list(one.copy_to(other))
        assert {ruling.plan: ruling.by for ruling in other.approvals()} == {INDUCTOR: "bob", TUNED: "bob"}
        assert read_explanations(other) == [(None, 3e9)]


@pytest.mark.parametrize("is_back", [False, True])
def test_of_two_pins_the_later_stays_one(source: Storage, target: Storage, is_back: bool) -> None:
    source.store_approval(a_ruling(INDUCTOR, Standing.PINNED))
    target.store_approval(a_ruling(TUNED, Standing.PINNED, at=2e9))
    one, other = (target, source) if is_back else (source, target)
    list(one.copy_to(other))
    assert {ruling.plan: ruling.standing.value for ruling in other.approvals()} == {
        INDUCTOR: "approved",
        TUNED: "pinned",
    }


# Beside others on a server


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[Storage]:
    with open_storage(postgres.store()) as storage:
        yield storage


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "file.db")) as storage:
        yield storage


def test_a_study_that_another_process_adds_at_the_same_time_is_one_study(file: Storage, shared: Storage) -> None:
    study = create(file)
    with shared._database._engine.connect() as other:  # has added it, and not committed when the copy looks
        studies.find_or_add(other, StudyKey.from_study(study), study)
        threading.Timer(0.3, other.commit).start()
        (copied,) = file.copy_to(shared)
    assert not copied.is_new
    assert len(shared.list_studies()) == 1


def test_a_duel_that_was_held_after_the_last_copy_is_copied(source: Storage, target: Storage) -> None:
    """The decision may go by it. One that is there already stays."""
    study = create(source)
    trial = complete_trial(claim(source, study.id))
    source.finish_trial(study.id, trial)
    assert [copied.trials for copied in source.copy_to(target)] == [1]
    here, there = (Duel(EAGER, Measurement((1.0,) * 9, (speed,) * 9)) for speed in (1.1, 1.2))
    assert source.keep_duel(study.id, trial.plan, here) == here
    assert [copied.trials for copied in source.copy_to(target)] == [0]
    (copied,) = target.list_studies()
    assert target.get_study(copied.id).trials == source.get_study(study.id).trials == (replace(trial, duel=here),)
    assert target.keep_duel(copied.id, trial.plan, there) == here
    list(target.copy_to(source))
    assert source.get_study(study.id).trials == (replace(trial, duel=here),)


def test_what_another_process_finishes_at_the_same_time_stays(file: Storage, shared: Storage) -> None:
    study, there = create(file), create(shared)
    file.finish_trial(study.id, complete_trial(claim(file, study.id)))
    first = fail_trial(claim(shared, there.id))
    with shared._database._engine.connect() as other:
        claims.finish(other, there.id, first, claims.record_of(first))
        threading.Timer(0.3, other.commit).start()
        assert [copied.trials for copied in file.copy_to(shared)] == [0]
    assert shared.get_study(there.id).trials == (first,)


# The commands


def run(*words: str) -> str:
    done = CliRunner().invoke(store, list(words))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_copies_and_says_what(urls: tuple[str, str], source: Storage) -> None:
    a_full_store(source)
    said = run("copy", "--to", urls[1], "--store", urls[0])
    assert said.endswith(": 3 of 3 studies and 3 trials were new there.\n")
    assert said.startswith("Copied to ")
    assert run("copy", "--to", urls[1], "--store", urls[0]).endswith(": 0 of 3 studies and 0 trials were new there.\n")
    with open_storage(urls[1]) as there:
        one, *others = there.list_studies()
        assert run("info", "--store", urls[1]) == f"Store {there.place}: 3 studies, 3 trials, schema {there.schema}.\n"
        for other in others:
            there.delete_study(other.id)
        held = f"1 study, {one.trials} trial{'s' * (one.trials != 1)}"
        assert run("info", "--store", urls[1]) == f"Store {there.place}: {held}, schema {there.schema}.\n"


def test_one_store_is_not_copied_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    open_storage(str(path)).close()
    with pytest.raises(StorageError, match=rf"store and --to are both {path}, but must be different stores"):
        run("copy", "--to", f"sqlite:///{path}", "--store", str(path))


@pytest.mark.parametrize("words", [["info"], ["copy", "--to", "there.db"]])
def test_a_store_that_is_not_there_is_not_made_by_a_look(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    with pytest.raises(StorageError, match=rf"store {path} does not exist: give another with --store"):
        run(*words, "--store", str(path))
    assert not list(tmp_path.iterdir())


def test_the_command_goes_back_to_an_older_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "one.db")
    open_storage(path).close()
    assert run("downgrade", "0001", "--store", path) == f"Store {path} has schema 0001 now.\n"
    with pytest.raises(StorageError, match="schema is '7', but must be one of 0001"):
        run("downgrade", "7", "--store", path)
