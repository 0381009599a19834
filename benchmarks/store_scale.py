"""Does a store of a million trials answer its pages in under a second?

    python benchmarks/store_scale.py URL [--studies 10000] [--trials 100] [--from URL]

If the store at URL is empty, it is filled with synthetic studies, or with copies from another store. Then each command
that reads the store runs in this process, after all imports. So does each query of commands and searches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import typer
from sqlalchemy import Connection, insert

from torchwise.cli import app
from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Decision,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Study,
    StudyState,
    Trial,
    TrialState,
    Verdict,
)
from torchwise.store import LeaseOwner, Storage, StudyKey, open_storage
from torchwise.store.claims import record_of
from torchwise.store.schema import decisions, dump, studies, trials

TARGETS = 500
"""Number of models. Each has one study for every machine and version."""
RUNS = 5
BATCH = 50
SAMPLES = tuple(0.001 + 1.37e-7 * step for step in range(40))


def a_study(number: int) -> Study:
    """Return a study as from one machine and version."""
    here = Environment("cpu", f"host{number % 40}", "Linux x86_64", "CPU", 8, "3.11.9", f"2.13.{number // TARGETS}")
    eager = Measurement(SAMPLES, SAMPLES)
    model = f"model{number % TARGETS}"
    seen = Inspection(model, model, "Net", ("x float32[8, 16]",), frozenset({"module"}), eager, 0.01)
    workload = WorkloadSpec(f"team.models:{model}", calls=100_000)
    return Study(0, workload, here, seen, "reordered", "standard", state=StudyState.DECIDED, created_at=1.7e9 + number)


def a_trial(number: int) -> Trial:
    """Return a finished trial with 40 pairs of samples and a verdict."""
    verdict = Verdict(tuple(Check(f"check {n}", Outcome.PASS, "agrees", 1e-7, 1e-7) for n in range(6)))
    timed = Measurement(SAMPLES, tuple(1.5 * seconds for seconds in SAMPLES))
    state, costs = TrialState.COMPLETE, Costs(10.0, warm_s=2.0, peak_memory=1 << 30)
    return Trial(number, Plan(threads=number + 1), state, "worth a try", None, timed, verdict, costs, 12.5, 1.7e9)


def a_decision(study: Study) -> Decision:
    """Return the decision of a study for its first plan."""
    speedup, pays = Interval(1.4, 1.5, 1.6), Interval(1e3, 2e3, 3e3)
    seen, here = study.inspection, study.environment
    return Decision(
        Plan(threads=1), "1.5 times as fast, verified by 6 checks", speedup, pays, 50.0, 0.001, 10.0, 2.0,
        study.workload, seen.identity, seen.structure, seen.inputs, here,
    )  # fmt: skip


def fill(storage: Storage, count: int, each: int) -> None:
    """Add `count` studies with `each` trials. All studies have the same trials."""
    me = LeaseOwner.current()
    owned = {"owner_host": me.host, "owner_pid": me.pid, "owner_started": me.started, "heartbeat": time.time()}
    alike = [{**owned, "number": number, **record_of(a_trial(number))} for number in range(each)]
    for first in range(1, count + 1, BATCH):
        numbers = range(first, min(first + BATCH, count + 1))
        storage._database.write(lambda connection, numbers=numbers: add(connection, numbers, alike))


def add(connection: Connection, numbers: range, alike: list[dict[str, object]]) -> None:
    """Insert the studies of these numbers."""
    made = [(number, a_study(number)) for number in numbers]
    connection.execute(insert(studies), [study_row(number, study) for number, study in made])
    connection.execute(insert(trials), [{**trial, "study_id": number} for number in numbers for trial in alike])
    connection.execute(insert(decisions), [decision_row(number, a_decision(study)) for number, study in made])


def study_row(number: int, study: Study) -> dict[str, object]:
    """Return the columns of a study."""
    row = {
        "id": number,
        **asdict(StudyKey.from_study(study)),
        "target": study.workload.target,
        "state": study.state.value,
    }
    ended = {"created_at": study.created_at, "seconds": 100.0, "excluded": json.dumps([])}
    return {**row, **ended, "format": "torchwise.study/1", "record": dump(study)}


def decision_row(number: int, decision: Decision) -> dict[str, object]:
    """Return the columns of a decision."""
    row = {"study_id": number, "target": decision.workload.target, "identity": decision.identity}
    shown = {"decided_at": 1.7e9 + number, "plan": str(decision.plan)}
    low, mid, high = decision.speedup.low, decision.speedup.mid, decision.speedup.high  # type: ignore[union-attr]
    speedup = {"speedup_low": low, "speedup_mid": mid, "speedup_high": high}
    return {**row, **shown, **speedup, "format": decision.schema, "record": dump(decision)}


def command(*words: str) -> Callable[[], object]:
    """Return a callable that runs the command in this process, without its output."""
    ready = typer.main.get_command(app)

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            ready.main(list(words), standalone_mode=False)

    return run


def questions(url: str, storage: Storage, newest: int, folder: str) -> dict[str, Callable[[], object]]:
    """Return the queries that users and searches send to a store."""
    one, other, target = str(newest), str(newest // 2), a_study(newest).workload.target
    words = {
        "torchwise plans list": ("plans", "list"),
        "torchwise plans list --target": ("plans", "list", "--target", target),
        "torchwise plans show latest": ("plans", "show", "latest"),
        "torchwise plans diff": ("plans", "diff", one, other),
        "torchwise plans export": ("plans", "export", one, f"{folder}/study.json"),
        "torchwise report": ("report", other),
        "torchwise report latest": ("report", "latest"),
        "torchwise report --json --html": ("report", one, "--json", f"{folder}/r.json", "--html", f"{folder}/r.html"),
        "torchwise store info": ("store", "info"),
    }
    mine, unused = replace(LeaseOwner.current(), pid=1), Plan(threads=4711)
    return {
        **{name: command(*text, "--store", url) for name, text in words.items()},
        "list_studies(limit=50)": lambda: storage.list_studies(limit=50),
        "list_studies(), all of them": storage.list_studies,
        "list_studies(target)": lambda: storage.list_studies(target),
        "decisions(target), its history": lambda: storage.decisions(target=target),
        "decisions(identity)": lambda: storage.decisions(identity=a_study(newest).inspection.identity),
        "find_study": lambda: storage.find_study(StudyKey.from_study(a_study(newest))),
        "get_study": lambda: storage.get_study(newest // 2),
        "reclaim": lambda: storage.release_dead_claims(newest),
        "heartbeat": lambda: storage.heartbeat(mine),
        "claim_trial, release_trial": lambda: claim_and_release(storage, newest, unused),
    }


def claim_and_release(storage: Storage, study_id: int, plan: Plan) -> None:
    """Claim a trial, as every trial does at its start, and release it."""
    trial = storage.claim_trial(study_id, plan, "to time it", LeaseOwner.current())
    assert trial is not None
    storage.release_trial(study_id, trial.number)


def time_runs(work: Callable[[], object]) -> tuple[float, float, float]:
    """Return the seconds of the first run, then the medians of later runs' seconds and CPU seconds."""
    took = []
    for _ in range(1 + RUNS):
        started, spent = time.perf_counter(), time.process_time()
        work()
        took.append((time.perf_counter() - started, time.process_time() - spent))
    first, *others = took
    return first[0], *(statistics.median(column) for column in zip(*others, strict=True))  # type: ignore[return-value]


def main() -> int:
    """Fill the store if necessary, time, and print a table.

    The exit status is 1 if a command takes a second or more.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--from", dest="source")
    given = parser.parse_args()
    with open_storage(given.url) as storage, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        if storage.size() == (0, 0) and given.source:
            with open_storage(given.source) as source:
                print(f"copied {sum(1 for _ in source.copy_to(storage))} studies", end=" ")
        elif storage.size() == (0, 0):
            fill(storage, given.studies, given.trials)
            print("filled", end=" ")
        size = "{} studies, {} trials".format(*storage.size())
        print(f"in {time.perf_counter() - started:.0f} s; {storage.place} holds {size}", flush=True)
        if storage._database.file:
            print(f"a file of {Path(storage.place).stat().st_size / 1e9:.2f} GB")
        (newest,) = storage.list_studies(limit=1)
        slow = []
        print(f"{'':34s}{'first':>9s}{'then':>9s}{'CPU':>9s}")
        for name, work in questions(given.url, storage, newest.id, folder).items():
            first, then, spent = time_runs(work)
            print(f"{name:34s}{first:7.3f} s{then:7.3f} s{spent:7.3f} s", flush=True)
            slow += [name] if then >= 1 and name.startswith("torchwise") else []
    print(f"a second or more, of the runs after the first: {', '.join(slow) or 'none'}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
