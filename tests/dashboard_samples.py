"""A store as a team leaves it: one target over three versions of torch, a running study, and a hostile one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis_samples import an_analysis
from bench_samples import a_benchmark, some_rows
from builders import CREATED_AT, HERE, a_measurement, a_plan, a_study, a_trial, an_inspection
from explain_samples import explanation, make_finding, price
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Measurement, Study
from torchwise.store import LeaseOwner, StudyKey, open_storage

TARGET = "zoo:vision.resnet50"
EVIL = "m/<img src=x onerror=alert(1)> *bold* [x](javascript:alert(1))/one_name_without_a_place_to_break_it.py:make"
PLAIN, LAST = a_plan(), a_plan(memory_format="channels_last")
SPEEDS = {"2.11.0+cu130": 1.60, "2.13.0+cu130": 1.75, "2.15.0+cu130": 1.40}


def a_version(torch: str, speed: float, month: int = 0, **changes: object) -> Study:
    """Return the decided study of `TARGET` with one version of torch. The decided plan is `LAST`."""
    environment = replace(HERE, torch=torch)
    trials = (
        a_trial(0, PLAIN, speed - 0.1, repeats=some_processes(speed - 0.1)),
        a_trial(1, LAST, speed, repeats=some_processes(speed)),
    )
    study = a_study(trials, decided=1, environment=environment, created_at=CREATED_AT + month * 30 * 86_400)
    assert study.decision is not None
    return replace(study, decision=replace(study.decision, environment=environment), **changes)  # type: ignore[arg-type]


def some_processes(speed: float) -> tuple[Measurement, ...]:
    """Return agreeing measurements of further processes. An interval of a single process is wide."""
    return tuple(a_measurement(speed, seed=60 + number) for number in range(4))


def a_filled_store(path: Path) -> str:
    """Fill a store with studies 1 to 5, of which 5 runs, and one report of each kind. Return its URL."""
    with open_storage(str(path)) as storage:
        for month, (torch, speed) in enumerate(SPEEDS.items()):
            storage.import_study(a_version(torch, speed, month))
        storage.import_study(
            a_study(workload=WorkloadSpec(EVIL, device="cuda"), inspection=an_inspection(identity="feed"))
        )
        begun = a_study((), decided=None, workload=WorkloadSpec("zoo:tutorial.fusion_demo"))
        begun = replace(begun, inspection=an_inspection(identity="abab"))
        running = storage.create_study(StudyKey.from_study(begun), begun)
        me = LeaseOwner.current()
        for plan, speed in ((PLAIN, 1.3), (LAST, None)):
            claimed = storage.claim_trial(running.id, plan, "a neighbour", me)
            assert claimed is not None
            if speed:
                storage.finish_trial(running.id, a_trial(claimed.number, plan, speed))
        benchmark = a_benchmark((*some_rows(TARGET), *some_rows("my.module:factory")))
        for report in (explanation(make_finding("guards", price(2e-3))), an_analysis(), benchmark):
            storage.keep_report(report)
    return str(path)
