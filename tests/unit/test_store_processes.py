"""Many processes on one store, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from postgres_server import PostgresServer
from store_samples import (
    INDUCTOR,
    TUNED,
    all_at_once,
    claim,
    create,
    finish_one_and_run_another,
    stop_within_a_transaction,
)
from torchwise.plan import Plan
from torchwise.records import TrialState
from torchwise.store import LeaseOwner, open_storage

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 32
PLANS = [Plan(threads=threads) for threads in range(1, 11)]


@contextmanager
def no_main() -> Iterator[None]:
    """Have a process that is spawned run no script: `__main__` may be a page that an earlier test's Streamlit drew.

    It was once in all tests of this file, in a process of tests that drew the dashboard's pages before.
    """
    before, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


@contextmanager
def killed_after_its_word(work: object, *args: object) -> Iterator[str]:
    """Start `work`, wait until it says how far it is, `kill -9` it, and yield its word."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(*args, theirs))  # type: ignore[arg-type]
    with no_main():
        process.start()
    try:
        assert ours.poll(30)
        said = ours.recv()
    finally:
        process.kill()
    yield said  # before it is waited for: the kernel still lists it
    process.join()
    assert process.exitcode == -9


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of a store that does not exist yet."""
    if request.param == "sqlite":
        return str(tmp_path / "torchwise.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def test_32_processes_lose_nothing_and_do_nothing_twice(url: str) -> None:  # all of them create the store
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=all_at_once, args=(url, PROCESSES, theirs, PLANS))
    with no_main():
        process.start()
    assert ours.poll(120), "they did not finish"
    shares, codes = ours.recv()
    process.join(30)
    assert codes == [0] * PROCESSES
    claimed = [claim for share in shares for claim in share]
    assert sorted(number for number, _ in claimed) == list(range(len(PLANS)))
    assert sorted(plan for _, plan in claimed) == sorted(plan.id for plan in PLANS)
    with open_storage(url) as storage:
        (summary,) = storage.list_studies()
        trials = storage.get_study(summary.id).trials
    assert sorted(claimed) == [(trial.number, trial.plan.id) for trial in trials]
    assert all(trial.state is TrialState.COMPLETE and trial.measurement for trial in trials)


def test_a_finished_trial_survives_the_kill_and_a_running_one_is_reclaimed(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        with killed_after_its_word(finish_one_and_run_another, url, study.id) as said:
            assert said == "finished one"
        done, running = storage.get_study(study.id).trials
        assert (done.plan, done.state) == (INDUCTOR, TrialState.COMPLETE)
        assert done.measurement is not None
        assert (running.plan, running.state) == (TUNED, TrialState.RUNNING)
        assert storage.release_dead_claims(study.id) == [TUNED]
        assert storage.get_study(study.id).trials == (done,)
        assert claim(storage, study.id, TUNED).number == 1


def test_nothing_of_a_transaction_survives_the_kill(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        trial = claim(storage, study.id)
        with killed_after_its_word(stop_within_a_transaction, url, study.id) as said:
            assert said == "half done"
        found = storage.get_study(study.id)
        assert (found.trials, found.seconds) == ((trial,), 0.0)
        storage.release_trial(study.id, trial.number)  # and the lock is free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_store_may_be_used_on_both_sides_of_a_fork(url: str) -> None:
    with open_storage(url) as storage:
        study = create(storage)
        claim(storage, study.id)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(storage.claim_trial(study.id, TUNED, "the child's", LeaseOwner.current()) is None)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert storage.release_dead_claims(study.id) == [TUNED]
