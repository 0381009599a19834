"""The worker that has inspected a model does the first trial as well, if nothing tells the model from a fresh one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from brief import BRIEF
from torchwise import environment
from torchwise._torch.cpu_isa_cache import SharedChecks
from torchwise.errors import BaselineError
from torchwise.measure import device_lock
from torchwise.plan import Plan
from torchwise.plan.requirements import read_properties
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, Inspection, WorkerStage, codec
from torchwise.records.listener import Listener
from torchwise.store import open_storage
from torchwise.study import Request, run_study
from torchwise.trial import Job, Limits, ProcessLauncher, Stopwatch, kept_worker, loaded_model, loading, worker
from torchwise.trial.budget import Budget, end_kept_worker
from torchwise.trial.job import Attempt
from torchwise.trial.kept_worker import KeptWorker, is_settled, may_follow, with_stay
from torchwise.trial.loaded_model import LoadedModel
from torchwise.trial.worker import MessageKind
from torchwise.workload import Workload

LIMITS = Limits(120.0, 8 * 2**30)
ONE, TWO = Plan(threads=1), Plan(threads=2)
TARGET = """
import os, torch
from pathlib import Path

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        {line}
        return self.line(x).relu()

def make():
    with open(Path(__file__).with_name("loads"), "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return Net().eval(), (torch.randn(4, 8),)
"""


@pytest.fixture(scope="module")
def launcher() -> ProcessLauncher:
    return ProcessLauncher()


def make_job(folder: Path, line: str = "pass") -> Job:
    """Return the order to inspect a small model whose call also runs a line of Python, by a worker that stays."""
    (folder / "model.py").write_text(TARGET.format(line=line))
    return with_stay(Job("inspect", WorkloadSpec(f"{folder / 'model.py'}:make"), effort=BRIEF))


def inspect(launcher: ProcessLauncher, job: Job) -> Inspection:
    answer = launcher.run(job, LIMITS, lambda _stage: None)
    assert isinstance(answer, str), answer
    return codec.from_json(answer, Inspection)


def attempt(
    launcher: ProcessLauncher, job: Job, plan: Plan = ONE, inspection: Inspection | None = None, **changes: Any
) -> Attempt | Failure:
    traits = frozenset(inspection.traits if inspection else ())
    order = replace(job, **{"task": "try", "plan": plan, "traits": traits, "stays": False, **changes})
    answer = launcher.run(order, LIMITS, lambda _stage: None)
    return answer if isinstance(answer, Failure) else codec.from_json(answer, Attempt)


def list_loads(folder: Path) -> list[int]:
    """List the processes that loaded the model."""
    return [int(line) for line in (folder / "loads").read_text().split()]


def test_the_first_trial_finds_the_model_that_the_inspection_loaded(launcher: ProcessLauncher, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    found = inspect(launcher, job)
    first = attempt(launcher, job, inspection=found)
    assert isinstance(first, Attempt)
    assert first.measurement is not None
    assert len(list_loads(tmp_path)) == 1, "one process serves both"
    second = attempt(launcher, job, TWO, found)
    assert isinstance(second, Attempt)
    assert len(set(list_loads(tmp_path))) == 2, "each candidate has a process that no other has used"
    if first.costs.peak_memory is not None and second.costs.peak_memory is not None:
        assert abs(first.costs.peak_memory - second.costs.peak_memory) < 2**24


@pytest.mark.parametrize(
    "line",
    [
        "self.calls += 1",
        "x.add_(1.0)",
        "torch.backends.cudnn.benchmark = True",
        "self.line.weight.data = self.line.weight.data.clone(); self.line.weight.requires_grad_(False).add_(0)",
    ],
)
def test_a_model_that_its_calls_change_is_loaded_again(launcher: ProcessLauncher, tmp_path: Path, line: str) -> None:
    job = make_job(tmp_path, line)
    inspect(launcher, job)
    assert not launcher._kept
    attempt(launcher, job)
    assert len(set(list_loads(tmp_path))) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "warm"},
        {"effort": replace(BRIEF, extra_draws=3)},
        {"cores": (0,)},
        {"batch": BatchDim(2, 4)},
        {"environment": {"OMP_NUM_THREADS": "1"}},
        {"workload": WorkloadSpec("zoo:tutorial.fusion_demo")},
    ],
    ids=str,
)
def test_a_job_that_needs_another_process_does_not_follow(changes: dict[str, Any]) -> None:
    first = with_stay(Job("inspect", WorkloadSpec("zoo:tutorial.one_layer"), effort=BRIEF))
    assert first.stays
    order = replace(first, task="try", plan=ONE, cache_dir="caches", baseline_s=1.0, stays=False)
    assert may_follow(first, order)
    assert not may_follow(first, replace(order, **changes))


def test_a_worker_stays_only_on_a_cpu_and_for_the_workload_as_it_is() -> None:
    spec = WorkloadSpec("zoo:tutorial.one_layer")
    assert with_stay(Job("inspect", spec)).stays
    for other in (
        replace(spec, device="cuda"),
        replace(spec, sizes="varying"),
        replace(spec, require=read_properties(["deterministic"])),
    ):
        assert not with_stay(Job("inspect", other)).stays
    assert not with_stay(Job("inspect", spec, tries_sizes=True)).stays


@pytest.mark.parametrize("is_local", [True, False])
def test_a_search_on_this_machine_has_the_worker_of_its_inspection_stay(tmp_path: Path, is_local: bool) -> None:
    asked: list[bool] = []

    class Unwilling:
        def run(self, job: Job, _limits: Limits, _on_stage: Any) -> str | Failure:
            asked.append(job.stays)
            raise BaselineError("the model raised")

    here = None if is_local else environment.detect("cpu")
    with open_storage(str(tmp_path / "store.db")) as storage, pytest.raises(BaselineError):
        run_study(Request(WorkloadSpec("zoo:tutorial.one_layer")), storage, Unwilling(), Listener(), here)
    assert asked == [is_local]


def test_a_worker_that_stays_is_ended_by_another_job(launcher: ProcessLauncher, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    inspect(launcher, job)
    [kept] = launcher._kept
    inspect(launcher, replace(job, stays=False))
    assert not launcher._kept
    assert kept.process.exitcode is not None or not psutil.pid_exists(kept.process.pid or 0)
    assert len(list_loads(tmp_path)) == 2


def test_a_search_without_a_trial_ends_the_worker_that_stayed(launcher: ProcessLauncher, tmp_path: Path) -> None:
    """One call of eager pays for no trial."""
    spec = replace(make_job(tmp_path).workload, calls=1)
    kept: list[KeptWorker] = []

    class Notes(Listener):
        def finish_inspection(self, _inspection: Inspection) -> None:
            kept.extend(launcher._kept)

    with open_storage(str(tmp_path / "store.db")) as storage:
        study = run_study(Request(spec, plans=(), effort="quick"), storage, launcher, Notes())
    assert not study.trials
    assert len(kept) == 1
    assert not kept[0].process.is_alive()
    assert not launcher._kept
    assert not Path(kept[0].folder.name).exists()


def test_a_worker_that_stayed_is_ended_within_a_budget_as_well(launcher: ProcessLauncher, tmp_path: Path) -> None:
    """A benchmark with a budget hands its limited launcher to the search."""
    inspect(launcher, make_job(tmp_path))
    [kept] = launcher._kept
    end_kept_worker(Budget(60.0, Stopwatch(lambda _stage: None)).limit(launcher))
    assert not launcher._kept
    assert not kept.process.is_alive()


def test_an_interruption_while_the_worker_takes_its_job_ends_it(
    launcher: ProcessLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_kept: KeptWorker, _job: Job) -> bool:
        raise KeyboardInterrupt

    job = make_job(tmp_path)
    inspect(launcher, job)
    [kept] = launcher._kept
    monkeypatch.setattr(KeptWorker, "hand_over", interrupt)
    with pytest.raises(KeyboardInterrupt):
        attempt(launcher, job)
    assert not kept.process.is_alive()
    assert not Path(kept.folder.name).exists()


def test_a_worker_that_has_died_meanwhile_is_replaced(launcher: ProcessLauncher, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    found = inspect(launcher, job)
    [kept] = launcher._kept
    kept.process.kill()
    assert isinstance(attempt(launcher, job, inspection=found), Attempt)
    assert len(set(list_loads(tmp_path))) == 2


@pytest.mark.parametrize("line", ["os.kill(os.getpid(), 11)", "raise ValueError('no answer')"])
def test_a_trial_that_fails_there_is_repeated_in_a_fresh_process(
    launcher: ProcessLauncher, tmp_path: Path, line: str
) -> None:
    """The candidate fails in any process, and a fresh one has the last word."""
    job = make_job(tmp_path, f"if torch.get_num_threads() == 3: {line}")
    found = inspect(launcher, job)
    failure = attempt(launcher, job, Plan(threads=3), found)
    assert isinstance(failure, Failure)
    assert failure.kind in (FailureKind.DIED, FailureKind.RAISED)
    assert len(set(list_loads(tmp_path))) == 2


def test_what_ended_for_lack_of_time_is_not_repeated() -> None:
    late, died = (Failure(kind, WorkerStage.COMPILE, "") for kind in (FailureKind.TIMED_OUT, FailureKind.DIED))
    assert is_settled("{}")
    assert is_settled(late)
    assert not is_settled(died)


# ---- the worker's side


@pytest.mark.parametrize(("stays", "can_go_on"), [(True, True), (True, False), (False, True)])
def test_a_worker_that_stays_leaves_the_device_and_says_so_before_its_answer(
    monkeypatch: pytest.MonkeyPatch, stays: bool, can_go_on: bool
) -> None:
    class Connection:
        def send(self, message: tuple[MessageKind, str]) -> None:
            told.append(message[0])

    told: list[object] = []
    for name in ("known", "is_warm", "tell"):
        monkeypatch.setattr(loaded_model.SHARED, name, getattr(loaded_model.SHARED, name))
    monkeypatch.setattr(worker, "_run", lambda _job, _enter: Costs(1.0))
    monkeypatch.setattr(worker, "_can_go_on", lambda: can_go_on)
    monkeypatch.setattr(device_lock, "leave", lambda: told.append("leave"))
    order = Job("inspect", WorkloadSpec("zoo:x.y"), stays=stays)
    try:
        assert worker._work(order, Connection(), {}) is (stays and can_go_on)  # type: ignore[arg-type]
    finally:
        device_lock.configure_lock(None)
    first = ["leave", MessageKind.STAYS] if stays and can_go_on else []
    assert told == [*first, MessageKind.RESULT]


def test_a_worker_has_the_variables_of_its_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Job("inspect", WorkloadSpec("zoo:x.y"), environment={"TORCHWISE_TEST_ONE": "1", "TORCHWISE_TEST_TWO": "2"})
    now = replace(before, environment={"TORCHWISE_TEST_TWO": "3"}, cache_dir="caches")
    for name in (*before.variables(), *now.variables()):
        monkeypatch.setenv(name, "former")
    worker._change_variables(before, now)
    assert "TORCHWISE_TEST_ONE" not in os.environ
    assert os.environ["TORCHWISE_TEST_TWO"] == "3"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "caches"


@pytest.fixture
def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()


@pytest.fixture
def loaded(net: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedModel]:
    """Return a model in a process that has compiled nothing, as a worker of an inspection, and other tests have."""
    threads = torch.get_num_threads()
    for name in ("count_compiled_graphs", "count_graph_breaks"):
        monkeypatch.setattr(loaded_model, name, lambda: 0)
    monkeypatch.setattr(loaded_model, "SHARED", SharedChecks())
    yield LoadedModel(Workload.of((net, (torch.ones(2, 4),)), name="net"))
    torch.set_num_threads(threads)
    loaded_model._kept = None


def test_a_model_and_a_process_as_they_were_may_be_used_again(loaded: LoadedModel, net: torch.nn.Module) -> None:
    notes: list[str] = []
    assert not loaded_model.can_go_on()
    loaded.keep(notes)
    with torch.no_grad():
        net(torch.ones(2, 4))
    assert loaded_model.can_go_on()
    notes.append("whether it prints is not known")
    assert not loaded_model.can_go_on(), "an instrument failed"


def change_weight(net: torch.nn.Module, _patch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        net[0].weight.add_(0)  # type: ignore[index,union-attr,operator]


def change_threads(_net: torch.nn.Module, _patch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


def compile_graph(_net: torch.nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loaded_model, "count_compiled_graphs", lambda: 1)


def check_instructions(_net: torch.nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loaded_model.SHARED, "owed_s", 2.0)


@pytest.mark.parametrize("change", [change_weight, change_threads, compile_graph, check_instructions])
def test_a_trace_of_the_inspection_ends_the_worker(
    loaded: LoadedModel, net: torch.nn.Module, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.keep([])
    change(net, monkeypatch)
    assert not loaded_model.can_go_on()


def test_random_numbers_start_over_from_where_loading_left_them(loaded: LoadedModel) -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    first = draw()
    loaded.keep([])
    assert loaded_model.take_kept() is loaded.workload
    assert draw() == first
    assert loaded_model.take_kept() is None, "one job has it"


def test_the_kept_model_is_the_one_that_a_job_loads(loaded: LoadedModel, tmp_path: Path) -> None:
    loaded.keep([])
    assert loading.load(make_job(tmp_path)).call is loaded.workload.call
    assert not (tmp_path / "loads").exists()


def test_memory_that_the_worker_holds_is_granted_besides() -> None:
    process: Any = psutil.Process()
    kept = kept_worker.KeptWorker(process, None, None, Job("inspect", WorkloadSpec("zoo:x.y")))  # type: ignore[arg-type]
    assert kept.grant_own_memory(LIMITS).memory_bytes > LIMITS.memory_bytes
