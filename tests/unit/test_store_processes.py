"""Many processes on one store, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from store_samples import (
    INDUCTOR,
    TUNED,
    claim,
    create,
    finish_one_and_run_another,
    stop_within_a_transaction,
    take_part,
)
from torchwise.plan import Plan
from torchwise.records import TrialState
from torchwise.store import Owner, open_storage

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 8
PLANS = [Plan(threads=threads) for threads in range(1, 21)]


@contextmanager
def killed_after_its_word(work: object, *args: object) -> Iterator[str]:
    """Start `work`, wait until it says how far it is, `kill -9` it, and yield what it said."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=work, args=(*args, theirs))  # type: ignore[arg-type]
    process.start()
    try:
        assert ours.poll(30)
        said = ours.recv()
    finally:
        process.kill()
    yield said  # before it is waited for: the kernel still lists it
    process.join()
    assert process.exitcode == -9


def test_eight_processes_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "torchwise.db")  # which does not exist: all eight create it
    barrier = SPAWN.Barrier(PROCESSES)
    pipes, processes = [], []
    for seed in range(PROCESSES):
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=take_part, args=(path, barrier, theirs, PLANS, seed))
        process.start()
        pipes.append(ours)
        processes.append(process)
    shares = [receive(pipe) for pipe in pipes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    claimed = [claim for share in shares for claim in share]
    assert sorted(number for number, _ in claimed) == list(range(len(PLANS)))
    assert sorted(plan for _, plan in claimed) == sorted(plan.id for plan in PLANS)
    with open_storage(path) as storage:
        (summary,) = storage.list_studies()
        trials = storage.get_study(summary.id).trials
    assert sorted(claimed) == [(trial.number, trial.plan.id) for trial in trials]
    assert all(trial.state is TrialState.COMPLETE and trial.measurement for trial in trials)


def receive(pipe: Connection) -> list[tuple[int, str]]:
    assert pipe.poll(60), "a process did not finish"
    claimed: list[tuple[int, str]] = pipe.recv()
    return claimed


def test_a_finished_trial_survives_the_kill_and_a_running_one_is_reclaimed(tmp_path: Path) -> None:
    path = str(tmp_path / "torchwise.db")
    with open_storage(path) as storage:
        study = create(storage)
        with killed_after_its_word(finish_one_and_run_another, path, study.id) as said:
            assert said == "finished one"
        done, running = storage.get_study(study.id).trials
        assert (done.plan, done.state) == (INDUCTOR, TrialState.COMPLETE)
        assert done.measurement is not None
        assert (running.plan, running.state) == (TUNED, TrialState.RUNNING)
        assert storage.reclaim(study.id) == [TUNED]
        assert storage.get_study(study.id).trials == (done,)
        assert claim(storage, study.id, TUNED).number == 1


def test_nothing_of_a_transaction_survives_the_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "torchwise.db")
    with open_storage(path) as storage:
        study = create(storage)
        trial = claim(storage, study.id)
        with killed_after_its_word(stop_within_a_transaction, path, study.id) as said:
            assert said == "half done"
        found = storage.get_study(study.id)
        assert (found.trials, found.seconds) == ((trial,), 0.0)
        storage.release_trial(study.id, trial.number)  # and the lock is free


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_store_may_be_used_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    with open_storage(str(tmp_path / "torchwise.db")) as storage:
        study = create(storage)
        claim(storage, study.id)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(storage.claim_trial(study.id, TUNED, "the child's", Owner.current()) is None)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert storage.reclaim(study.id) == [TUNED]
