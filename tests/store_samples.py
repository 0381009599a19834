"""Jobs of other processes with a store, and a dump of one. No torch here, so that a process starts quickly.

`python tests/store_samples.py > tests/fixtures/store_v<N>.sql` dumps a store of the present schema. Old dumps stay.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import create_engine, text

from torchwise.plan import EAGER, Plan
from torchwise.records import Decision, Standing, StudyState
from torchwise.records.benchmark import Benchmark
from torchwise.store import LeaseOwner, open_storage
from torchwise.store.location import locate
from torchwise.testing.records import FASTER as FASTER
from torchwise.testing.records import HERE as HERE
from torchwise.testing.records import INDUCTOR, TUNED, complete_trial, fail_trial, make_decision
from torchwise.testing.records import PASSED as PASSED
from torchwise.testing.records import claim_trial as claim
from torchwise.testing.records import create_study as create
from torchwise.testing.records import make_approval as a_ruling
from torchwise.testing.records import make_explanation as an_explanation
from torchwise.testing.records import make_study as a_study


def a_decision(plan: Plan = INDUCTOR, **changes: Any) -> Decision:
    """Return the decision with the words that the dumps of older stores have."""
    return make_decision(plan, **{"reason": "2 times as fast, proven by 1 check", **changes})


# The jobs of other processes. Each says over `pipe` how far it is and is killed, or ends.


def take_part(path: str, barrier: Barrier, pipe: Connection, plans: list[Plan], seed: int) -> None:
    """Open, create and work through the plans together with others. Send the claimed numbers."""
    barrier.wait(30)
    random.Random(seed).shuffle(plans)
    claimed = []
    with open_storage(path) as storage:
        study = create(storage)
        for plan in plans:
            if trial := storage.claim_trial(study.id, plan, f"of {seed}", LeaseOwner.current()):
                storage.finish_trial(study.id, complete_trial(trial))
                claimed.append((trial.number, plan.id))
    pipe.send(claimed)


def all_at_once(path: str, count: int, pipe: Connection, plans: list[Plan]) -> None:
    """Have `count` processes take part.

    Send the numbers that each claimed. They are forked, so as to start at the same time.
    """
    fork = multiprocessing.get_context("fork")  # safe here: this process has one thread, and no torch
    create_engine(locate(path))  # loads the driver, once for all
    barrier, ends = fork.Barrier(count), [fork.Pipe() for _ in range(count)]
    processes = [
        fork.Process(target=take_part, args=(path, barrier, theirs, plans, seed))
        for seed, (_ours, theirs) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    shares = [ours.recv() if ours.poll(60) else None for ours, _theirs in ends]
    for process in processes:
        process.join(30)
    pipe.send((shares, [process.exitcode for process in processes]))


def finish_one_and_run_another(path: str, study_id: int, pipe: Connection) -> None:
    storage = open_storage(path)
    storage.finish_trial(study_id, complete_trial(claim(storage, study_id, INDUCTOR)))
    claim(storage, study_id, TUNED)
    pipe.send("finished one")
    time.sleep(60)


def stop_within_a_transaction(path: str, study_id: int, pipe: Connection) -> None:
    def half_done(connection: Any) -> None:
        connection.execute(text("DELETE FROM torchwise_trials"))
        connection.execute(text("UPDATE torchwise_studies SET seconds = 99"))
        pipe.send("half done")
        time.sleep(60)

    open_storage(path)._database.write(half_done)


def dump() -> str:
    """Return the SQL of a store that holds one of everything."""
    with tempfile.TemporaryDirectory() as folder, mock.patch("time.time", return_value=1e9):
        path = Path(folder) / "torchwise.db"
        with open_storage(str(path)) as storage:
            study, gone = create(storage, a_study(created_at=1e9)), LeaseOwner("long gone", 1, 1e9)
            storage.finish_trial(study.id, complete_trial(claim(storage, study.id, TUNED, gone)))
            storage.finish_trial(study.id, fail_trial(claim(storage, study.id, Plan(capture="call"), gone)))
            claim(storage, study.id, INDUCTOR, gone)
            storage.store_outcome(
                study.id,
                state=StudyState.DECIDED,
                decision=a_decision(TUNED),
                excluded=["bf16: not allowed"],
                seconds=9,
            )
            create(storage, a_study("2d" * 8, "app:factory", created_at=2e9))
            storage.store_outcome(
                2, state=StudyState.DECIDED, decision=a_decision(EAGER, speedup=None), excluded=[], seconds=1
            )
            storage.store_approval(a_ruling(TUNED, Standing.PINNED))
            storage.keep_explanation(an_explanation(TUNED))
            storage.keep_report(Benchmark(HERE, 1e9))
        connection = sqlite3.connect(path)
        lines = "\n".join(connection.iterdump()) + "\n"
        connection.close()
        return lines


if __name__ == "__main__":
    sys.stdout.write(dump())
