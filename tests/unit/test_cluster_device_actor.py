"""The node's side of a cluster: how it runs a job, without Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchwise.errors import BaselineError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind
from torchwise.study.cluster import device_actor as module
from torchwise.study.cluster.device_actor import DeviceActor, Order
from torchwise.trial import Job, Limits
from torchwise.trial.full_graph import FullGraphJob

JOB = Job("try", WorkloadSpec("zoo:tutorial.fusion_demo"), cache_dir="/on/the/users/machine")


class Launched:
    """Replaces the launcher of processes."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.jobs, self.limits = list(answers), [], []  # type: ignore[var-annotated]

    def run(self, job: Job, limits: Limits, on_stage: Any) -> str | Failure:
        self.jobs.append(job)
        self.limits.append(limits)
        on_stage("compile")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceActor]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = DeviceActor("/no/such/folder", {})
    yield made
    made.close()


def run(seat: DeviceActor, launched: Launched, job: Order = JOB) -> list[tuple[str, Any]]:
    seat._launcher = launched  # type: ignore[assignment]
    seat.begin(job, Limits(60, 1))
    heard: list[tuple[str, Any]] = []
    deadline = time.monotonic() + 10
    while not heard or heard[-1][0] == "stage":
        assert time.monotonic() < deadline
        heard += seat.poll()
    return heard


def test_a_job_runs_with_caches_and_memory_of_the_node(seat: DeviceActor) -> None:
    launched = Launched("{}", "1.5")
    assert run(seat, launched) == [("stage", "compile"), ("answer", "{}")]
    assert run(seat, launched, replace(JOB, task="warm"))[-1] == ("answer", "1.5")
    cold, warm = launched.jobs
    assert cold.cache_dir == warm.cache_dir != JOB.cache_dir
    assert Path(cold.cache_dir).is_dir()
    assert launched.limits[0].time_s == 60
    assert launched.limits[0].memory_bytes > 1
    run(seat, Launched("{}"), replace(JOB, cache_dir="another candidate's"))
    assert not Path(cold.cache_dir).exists()


def test_a_warm_start_elsewhere_compiles_first_what_the_lost_node_had_compiled(seat: DeviceActor) -> None:
    launched = Launched("{}", "1.5")
    assert run(seat, launched, replace(JOB, task="warm"))[-1] == ("answer", "1.5")
    assert [job.task for job in launched.jobs] == ["try", "warm"]
    failure = Failure(FailureKind.DIED, "compile", "SIGSEGV")
    again = replace(JOB, task="warm", cache_dir="another candidate's")
    assert run(seat, Launched(failure), again)[-1] == ("answer", failure)


def test_an_order_derived_from_a_job_has_the_caches_of_the_node_too(seat: DeviceActor) -> None:
    launched = Launched("{}", "1.5")
    for order in (FullGraphJob(JOB), FullGraphJob(replace(JOB, cache_dir=""))):
        run(seat, launched, order)
    mine, without = launched.jobs
    assert isinstance(mine, FullGraphJob)
    assert mine.job.cache_dir != JOB.cache_dir
    assert Path(mine.job.cache_dir).is_dir()
    assert without == FullGraphJob(replace(JOB, cache_dir=""))


def test_what_the_users_own_fault_raises_comes_back(seat: DeviceActor) -> None:
    error = BaselineError("the model raises")
    assert run(seat, Launched(error))[-1] == ("error", error)


def test_silence_is_answered(seat: DeviceActor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)
    assert seat.poll() == []


@pytest.mark.parametrize("chosen", [None, "3"])
def test_the_number_of_threads_is_the_administrators_and_not_rays(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCH_LOGS"):
        monkeypatch.setenv(name, "1")  # undoes the seat's changes to it, too
    raylet = {} if chosen is None else {"OMP_NUM_THREADS": chosen}
    monkeypatch.setattr(module.psutil.Process, "environ", lambda process: raylet)
    DeviceActor("/no/such/folder", {"TORCH_LOGS": "+dynamo"})
    assert os.environ.get("OMP_NUM_THREADS") == chosen
    assert os.environ["TORCH_LOGS"] == "+dynamo"


def test_a_seat_stands_in_the_users_folder_where_the_node_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    DeviceActor(str(tmp_path), {})
    assert Path.cwd() == tmp_path
