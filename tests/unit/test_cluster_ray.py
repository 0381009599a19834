"""Trials on a real Ray cluster of several nodes: the costs of a lost worker, node or driver."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import brief
from brief import BRIEF
from postgres_server import PostgresServer
from torchwise.environment import detect
from torchwise.errors import BudgetError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import FailureKind, Trial, TrialState
from torchwise.records.listener import Listener
from torchwise.store import open_storage
from torchwise.study.cluster.launcher import RESERVE_S, RETRIES, RayLauncher
from torchwise.testing.launcher import LauncherContract
from torchwise.trial import Job, Limits, ProcessSettings, try_plan
from torchwise.trial.full_graph import require_full_graph

TARGETS = Path(__file__).parent.parent / "targets" / "misbehaving.py"
GOOD, BAD = Plan(threads=1), Plan(threads=3)
SETTINGS = ProcessSettings("highest", "float32", 2, False, True, False)

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without devices, and two nodes with one CPU each, which Ray takes for two machines."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, as the names of sockets must be
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 5}
    patched = pytest.MonkeyPatch()
    patched.setenv("RAY_TMPDIR", folder)
    patched.setenv("OMP_NUM_THREADS", "2")  # or one thread would be no plan
    patched.setenv("RAY_TQDM_PATCH_PRINT", "0")  # or `print` is Ray's for every later test of this process
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=quick)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        patched.undo()
        shutil.rmtree(folder, ignore_errors=True)


class TestContract(LauncherContract):
    @pytest.fixture(scope="class")  # a seat on another node loads PyTorch anew
    def launcher(self, cluster: Cluster) -> Iterator[RayLauncher]:
        with RayLauncher("cpu", cluster.address) as launcher:
            yield launcher


def job(factory: str) -> Job:
    spec = WorkloadSpec(f"{TARGETS}:{factory}")
    traits = frozenset({"module"})
    return Job("try", spec, traits=traits, effort=BRIEF, settings=SETTINGS)


def ask(launcher: RayLauncher, question: Callable[[Any], Any]) -> Any:
    """Have the seat answer something about its process."""
    return ray.get(launcher._actor.__ray_call__.remote(question), timeout=30)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_whether_a_model_is_one_graph_is_asked_on_the_cluster_and_a_full_one_ends_the_wait(cluster: Cluster) -> None:
    demo = replace(job("nan"), workload=WorkloadSpec("zoo:tutorial.fusion_demo"))
    with RayLauncher("cpu", cluster.address) as launcher, RayLauncher("cpu", cluster.address):
        require_full_graph(launcher, demo, Limits(120, 0), lambda stage: None)
        begun = time.monotonic()
        with pytest.raises(BudgetError, match="before a device of the cluster was free"):
            RayLauncher("cpu", cluster.address, wait_s=1.0)
        assert time.monotonic() - begun < RESERVE_S


def test_a_trial_goes_on_elsewhere_when_its_worker_and_then_its_node_is_killed(cluster: Cluster) -> None:
    """One candidate hangs by itself. Once nothing else is killed, it is ended at its limit, with the usual words."""
    heard: list[str] = []
    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append
    with RayLauncher("cpu", cluster.address, listener=listener) as launcher:
        assert launcher.environment == detect("cpu")
        ended: list[Trial] = []
        trial = Trial(1, BAD, TrialState.RUNNING)

        def hang() -> None:
            ended.append(try_plan(launcher, job("hangs"), trial, Limits(3, 0), heard.append))

        thread = threading.Thread(target=hang)
        thread.start()
        works = lambda seat: "torchwise-job" in {thread.name for thread in threading.enumerate()}  # noqa: E731 - by value
        wait_until(lambda: ask(launcher, works), 30, "the candidate never started")
        os.kill(ask(launcher, lambda seat: os.getpid()), signal.SIGKILL)
        wait_until(lambda: "compile" in heard, 60, "the candidate was not tried again after its worker died")
        here = ask(launcher, lambda seat: ray.get_runtime_context().get_node_id())
        (node,) = (node for node in cluster.worker_nodes if node.node_id == here)
        cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: heard.count("compile") == 2, 90, "the candidate was not tried again after its node died")
        assert ask(launcher, lambda seat: ray.get_runtime_context().get_node_id()) != here
        thread.join(60)
        (failed,) = ended
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.TIMED_OUT
    assert "passed its limit of 3 s, in" in failed.failure.message
    assert len(notes) == RETRIES, notes
    cluster.add_node(num_cpus=1)


def test_a_sweep_whose_driver_and_then_database_are_killed_loses_no_trial_and_decides_as_one_left_alone(
    cluster: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    plans = (GOOD, Plan(threads=4), BAD)
    manifest = tmp_path / "sweep.toml"
    asked = json.dumps([plan.to_json() for plan in plans])
    manifest.write_text(f"targets = ['{TARGETS}:wrong']\neffort = 'quick'\nplan = {asked}\n")
    words = [sys.executable, brief.__file__, "sweep", str(manifest), "--launcher", "ray", "--device", "cpu"]
    words += ["--address", cluster.address]
    log, store = tmp_path / "log", postgres.store()
    disturbed = [*words, "--store", store, "--json", str(tmp_path / "disturbed.json")]
    alone = [*words, "--store", str(tmp_path / "alone.db"), "--json", str(tmp_path / "alone.json")]
    with ended(alone, tmp_path / "quiet") as left_alone, ended(disturbed, log) as driver:
        wait_until(lambda: bool(read_finished_trials(store)), 120, "no trial ever ended")
        driver.kill()
        driver.wait()
        before = read_finished_trials(store)
        with ended(disturbed, log) as again:
            wait_until(lambda: len(read_finished_trials(store)) > len(before), 120, "the sweep did not go on")
            before |= read_finished_trials(store)
            postgres.kill()
            try:
                wait_until(lambda: "cannot be reached" in log.read_text(), 120, "nobody asked for the database")
            finally:
                postgres.start()
            assert again.wait(150) == 0, log.read_text()
        assert left_alone.wait(150) == 0
    after = read_finished_trials(store)
    assert before.items() <= after.items()
    assert {plan for _, plan in after} == {plan.id for plan in plans}
    assert outcome(tmp_path / "disturbed.json") == outcome(tmp_path / "alone.json")
    assert outcome(tmp_path / "alone.json")[0]["threads"] == GOOD.threads


@contextmanager
def ended(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose end is seen to, and keep its output."""
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


def read_finished_trials(store: str) -> dict[tuple[str, str], Trial]:
    with open_storage(store) as storage:
        studies = [storage.get_study(summary.id) for summary in storage.list_studies()]
    return {
        (study.workload.target, trial.plan.id): replace(trial, repeats=(), reason="", duel=None)  # may be added later
        for study in studies
        for trial in study.trials
        if trial.state.is_finished
    }


def outcome(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the plan that was decided for, and how each trial ended."""
    (swept,) = json.loads(file.read_text())["studies"]
    study = swept["study"]
    return study["decision"]["plan"], {json.dumps(trial["plan"]): trial["state"] for trial in study["trials"]}
