"""Records to store, and the jobs of other processes with a store. No torch here, so that a process starts quickly.

`python tests/store_samples.py > tests/fixtures/store_v<N>.sql` dumps a store of the present schema. Old dumps stay.
"""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import create_engine, text

from torchwise.environment import Environment
from torchwise.plan import EAGER, Numerics, Plan, Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Approval,
    Check,
    Costs,
    Decision,
    Failure,
    FailureKind,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Standing,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
)
from torchwise.records.compile_events import CompileEvents
from torchwise.records.explanation import Capturable, Execution, Explanation, Finding, Kernel, Stage
from torchwise.store import LeaseOwner, Storage, StudyKey, open_storage
from torchwise.store.location import locate

HERE = Environment(
    device="cpu",
    hostname="here",
    system="Linux x86_64",
    cpu="Example CPU @ 3.00 GHz",
    cpus=8,
    python="3.11.9",
    torch="2.13.0+cpu",
)
INDUCTOR = Plan(backend="inductor")
TUNED = Plan(backend="inductor", options=(("max_autotune", True), ("coordinate_descent_tuning", True)))
FASTER = Measurement((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), notes=("the machine was busy",))
PASSED = Verdict((Check("values", Outcome.PASS, "agrees", error=1e-7, floor=1e-7),))


def a_study(identity: str = "1d" * 8, target: str = "zoo:tutorial.fusion_demo", **changes: Any) -> Study:
    inspection = Inspection(
        identity=identity,
        structure="57" * 8,
        description="Net, 25.6 M parameters, float32",
        inputs=("[0][0] float32[8, 16] (16, 1)",),
        traits=frozenset(map(Trait, {"module", "floating", "gemm"})),
        measurement=Measurement((1.0, 1.25, 1.5), (1.0, 1.25, 1.5)),
        first_call_s=0.01,
        shares={"gemm": 0.75},
    )
    return replace(Study(0, WorkloadSpec(target), HERE, inspection, Numerics.SAME_PRECISION, "quick"), **changes)


def a_decision(plan: Plan = INDUCTOR, **changes: Any) -> Decision:
    decision = Decision(
        plan=plan,
        reason="2 times as fast, proven by 1 check",
        speedup=Interval(1.75, 2.0, 2.25),
        break_even_calls=Interval(10.0, 20.0, float("inf")),
        saved_s=100.0,
        baseline_s=1.0,
        cold_s=10.0,
        warm_s=None,
        workload=WorkloadSpec("zoo:tutorial.fusion_demo"),
        identity="1d" * 8,
        structure="57" * 8,
        inputs=("[0][0] float32[8, 16] (16, 1)",),
        environment=HERE,
    )
    return replace(decision, **changes)


def a_ruling(plan: Plan = INDUCTOR, standing: Standing = Standing.APPROVED, **changes: Any) -> Approval:
    ruling = Approval(
        "zoo:tutorial.fusion_demo", "inference", HERE.hardware, plan, standing, "bob", "it is calm", at=1e9
    )
    return replace(ruling, **changes)


def an_explanation(plan: Plan | None = None, **changes: Any) -> Explanation:
    told = Explanation(
        workload=WorkloadSpec("zoo:tutorial.fusion_demo"),
        environment=HERE,
        plan=plan,
        measurement=FASTER,
        stages=(Stage("graph capture", 0.25, "4 lines", "1 graph"),),
        execution=Execution(Interval(0.5, 0.5, 0.5), 0.25, guards=7),
        kernels=(Kernel("h\u00f6he", 2.0, 0.125),),
        findings=(Finding("guards", "7 guards", "they are checked", "leave them out"),),
        capturable=Capturable(None),
        compile_events=CompileEvents(0.5),
        created_at=1e9,
    )
    return replace(told, **changes)


def complete_trial(trial: Trial) -> Trial:
    costs = Costs(10.0, warm_s=2.5, peak_memory=1 << 40)
    return replace(
        trial, state=TrialState.COMPLETE, measurement=FASTER, verdict=PASSED, costs=costs, seconds=12.5, started_at=1e9
    )


def fail_trial(trial: Trial) -> Trial:
    failure = Failure(FailureKind.DIED, "compile", "SIGSEGV", "line 1\nline 2 with \u00e9 and \x00")
    return replace(trial, state=TrialState.FAIL, failure=failure, started_at=1e9)


def create(storage: Storage, study: Study | None = None) -> Study:
    study = study or a_study()
    return storage.create_study(StudyKey.from_study(study), study)


def claim(storage: Storage, study_id: int, plan: Plan = INDUCTOR, owner: LeaseOwner | None = None) -> Trial:
    trial = storage.claim_trial(study_id, plan, "it is worth a try", owner or LeaseOwner.current())
    assert trial is not None
    return trial


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
        connection = sqlite3.connect(path)
        lines = "\n".join(connection.iterdump()) + "\n"
        connection.close()
        return lines


if __name__ == "__main__":
    sys.stdout.write(dump())
