"""Workers on CPU cores of their own, which end with their search."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from torchwise._torch import inductor
from torchwise.measure import device_lock, quality
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Inspection, codec
from torchwise.testing.launcher import is_running
from torchwise.trial import Job, Limits, ProcessLauncher
from torchwise.trial.limits import StoppedError


def test_the_variables_of_a_worker_say_that_its_cores_are_its_own() -> None:
    spec = WorkloadSpec("zoo:anything", device="cuda")
    assert Job("try", spec, cores=(2, 3)).variables()[device_lock.OWN_CORES] == "1"
    assert device_lock.OWN_CORES not in Job("try", spec, environment={}).variables()


def test_workers_of_one_server_are_no_foreign_programs_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for whoever measures. Outside a worker, a parent process may start any program."""
    beside = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    beside.start()
    own = psutil.Process

    class Sibling(own):  # type: ignore[misc, valid-type]
        def parents(self) -> list[psutil.Process]:
            return [own(os.getpid())]

    monkeypatch.setattr(quality.psutil, "Process", Sibling)
    try:
        assert beside.pid not in quality._list_family()
        monkeypatch.setattr(device_lock, "_joined", object())
        assert beside.pid in quality._list_family()
    finally:
        beside.kill()
        beside.join()


def test_a_worker_runs_on_its_cores_with_as_many_threads() -> None:
    """It was forked from a server that counted all cores."""
    first = min(os.sched_getaffinity(0))
    job = Job("inspect", WorkloadSpec("zoo:tutorial.fusion_demo"), cores=(first,))
    answer = ProcessLauncher().run(job, Limits(120, 2**35), lambda _stage: None)
    assert isinstance(answer, str), answer
    cores = codec.from_json(answer, Inspection).measurement.cores
    assert cores is not None
    assert (cores.cpus, cores.threads) == (1, 1)
    assert os.sched_getaffinity(0) >= {first}


def test_inductor_compiles_with_as_many_processes_as_there_are_cores() -> None:
    with inductor.patch_config({"compile_threads": 8}):
        inductor.limit_compile_threads(3)
        assert inductor.CONFIG.get().compile_threads == 3
        inductor.limit_compile_threads(5)
        assert inductor.CONFIG.get().compile_threads == 3, "the user's own, smaller number stays"


def test_a_worker_ends_as_soon_as_its_search_stops(tmp_path: Path) -> None:
    stop, note = threading.Event(), tmp_path / "pid of the child"
    job = Job("torchwise.testing.launcher:hang", WorkloadSpec(f"contract:{note}"))  # type: ignore[arg-type]

    def hear(stage: str) -> None:
        if stage == "measure":  # the worker hangs from here on
            stop.set()

    with pytest.raises(StoppedError):
        ProcessLauncher().run(job, Limits(600, 2**35, stop=stop), hear)
    deadline = time.monotonic() + 30
    while is_running(child := int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)
