"""Turns at a device: a worker that measures is alone, the others wait, and no wait counts against a worker's time."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx
from torch._inductor import config as inductor
from torch._inductor.runtime import benchmarking

from torchwise._torch.private_name import PrivateName
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Trial, TrialState
from torchwise.records.trial import WAITING
from torchwise.trial import Job, Limits, ProcessLauncher, harness, try_plan
from torchwise.trial.harness import Harness
from torchwise.trial.loading import load
from torchwise.workload import Example, Workload

TARGET = f"{Path(__file__).parents[1] / 'targets' / 'misbehaving.py'}:wrong"
JOB = Job("inspect", WorkloadSpec(TARGET), effort=EFFORTS["quick"])


def _worker(folder: Path, heard: Queue[tuple[str, float, float]], share_s: float, alone_s: float) -> None:
    mine = device_lock.DeviceLock("cpu", bool, folder)
    for _ in range(4):
        mine.share()
        start = time.monotonic()
        time.sleep(share_s)
        heard.put(("shared", start, time.monotonic()))
        with mine.alone():
            start = time.monotonic()
            time.sleep(alone_s)
            heard.put(("alone", start, time.monotonic()))


def test_whoever_measures_is_alone_and_the_others_share(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    heard: Queue[tuple[str, float, float]] = context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path, heard, 0.05, 0.02)) for _ in range(4)]
    for worker in workers:
        worker.start()
    spans = [heard.get(timeout=30) for _ in range(4 * 4 * 2)]
    for worker in workers:
        worker.join(10)
    assert sum(kind == "alone" for kind, *_ in spans) == 16
    for kind, start, end in spans:
        overlapping = [s for s in spans if s[1] < end and start < s[2] and s != (kind, start, end)]
        if kind == "alone":
            assert not overlapping
    shared = [(start, end) for kind, start, end in spans if kind == "shared"]
    assert any(a < d and c < b for a, b in shared for c, d in shared if (a, b) != (c, d)), "nobody worked side by side"


def test_two_that_want_to_be_alone_do_not_wait_for_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    heard: Queue[tuple[str, float, float]] = context.Queue()
    workers = [context.Process(target=_worker, args=(tmp_path, heard, 0.0, 0.0)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    def hold() -> None:
        device_lock.DeviceLock("cpu", bool, tmp_path).share()
        holding.set()
        time.sleep(60)

    context = multiprocessing.get_context("fork")
    holding = context.Event()
    holder = context.Process(target=hold)
    holder.start()
    holding.wait(10)
    holder.kill()
    told: list[bool] = []
    mine = device_lock.DeviceLock("cpu", told.append, tmp_path)
    mine.share()
    with mine.alone():
        pass
    holder.join(10)
    assert told in ([], [True, False])


def test_without_a_folder_for_locks_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    device_lock.configure_lock(bool)
    device_lock.join("cpu")
    with device_lock.alone():
        pass
    assert device_lock._joined is None
    device_lock.configure_lock(None)


def test_a_process_that_leaves_has_others_go_on_until_it_joins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    other = device_lock._open_lock("cpu.room")
    device_lock.configure_lock(bool)
    device_lock.leave()  # which nobody has joined
    for _ in range(2):
        device_lock.join("cpu")
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        device_lock.leave()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_UN)
    device_lock.configure_lock(None)
    os.close(other)


def test_a_program_that_is_no_worker_takes_no_part() -> None:
    """It may load a workload and measure it. It neither waits for others nor makes them wait, however long it lives."""
    mine = device_lock.DeviceLock("cpu", bool)
    mine.share()
    with mine.alone():
        load(JOB)
        with device_lock.alone():
            pass
    mine.leave()
    assert device_lock._joined is None


def test_waiting_is_not_on_the_workers_account() -> None:
    """A worker that may take five seconds waits for six: it is neither ended, nor is it silent."""
    other = device_lock.DeviceLock("cpu", bool)
    heard: list[str] = []
    with contextlib.ExitStack() as held:
        held.callback(other.leave)  # on any failure here: the workers of other tests would wait for ever
        held.enter_context(other.alone())

        def hear(stage: str) -> None:
            if stage == WAITING and WAITING not in heard:  # not before: a server of workers takes seconds to start
                threading.Timer(6, held.close).start()
            heard.append(stage)

        answer = ProcessLauncher().run(JOB, Limits(5, 8 * 2**30), hear)
        assert isinstance(answer, str), answer
    assert heard[0] == WAITING
    # Whoever else works on this machine may be waited for, too, and the stage is told again afterwards.
    stages = list(dict.fromkeys(stage for stage in heard if stage != WAITING))
    assert stages == ["start", "run eager", "inspect the model", "measure", "profile"]


def test_what_a_trial_took_is_what_it_would_take_alone(spent_clock: Any) -> None:
    class Waits:
        def run(self, _job: object, _limits: Limits, on_stage: Callable[[str], None]) -> Failure:
            for stage, seconds in (("start", 1), (WAITING, 10), (WAITING, 20), ("compile", 2), (WAITING, 40)):
                on_stage(stage)
                spent_clock.now += seconds
            return Failure(FailureKind.DIED, "compile", "gone")

    heard: list[str] = []
    trial = Trial(0, Plan(threads=1), TrialState.RUNNING)
    tried = try_plan(Waits(), JOB, trial, Limits(60, 2**33), heard.append)  # type: ignore[arg-type]
    assert heard == ["start", WAITING, WAITING, "compile", WAITING]
    assert tried.seconds == 43, "it ended while it waited, and nothing said that it had the device again"


class Other(device_lock.DeviceLock):
    """Another process at the same device: its locks are its own, as in a process of its own."""

    def __init__(self, folder: Path | None, device: str = "cuda-0") -> None:
        super().__init__(device, bool, folder)

    def may_measure(self) -> bool:
        """Return whether it would have the device alone at once."""
        try:
            device_lock.fcntl.flock(self._room, device_lock.fcntl.LOCK_EX | device_lock.fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.leave()
        return True


@pytest.fixture
def other(tmp_path: Path) -> Other:
    return Other(tmp_path / f"torchwise-turns-{os.getuid()}")


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[bool]]]:
    """Make this process a worker that shares a device with `other`. Return the words on its waits."""
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(device_lock, "name_of", lambda _device: "cuda-0")

    def join(own_cores: str | None = "1", device: str = "cuda") -> list[bool]:
        monkeypatch.delenv(device_lock.OWN_CORES, raising=False)
        if own_cores is not None:
            monkeypatch.setenv(device_lock.OWN_CORES, own_cores)
        told: list[bool] = []
        device_lock.configure_lock(told.append)
        device_lock.join(device)
        return told

    yield join
    if device_lock._joined:
        device_lock._joined.leave()
    device_lock.configure_lock(None)


class Compiler:
    """Stands in for Inductor: functions stand for the work of `compile`, and of timing a kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: Callable[[], None] = lambda: None
        self.times: Callable[[], None] = lambda: None
        monkeypatch.setattr(compile_fx, "fx_codegen_and_compile", lambda: self.works())
        owner = type(benchmarking.benchmarker)
        for method in ("benchmark_gpu", "benchmark_gpu_with_cuda_graph"):
            monkeypatch.setattr(owner, method, lambda _self: self.times(), raising=False)

    def compile(self) -> None:
        compile_fx.fx_codegen_and_compile()  # type: ignore[call-arg]

    def time(self) -> None:
        benchmarking.benchmarker.benchmark_gpu()

    def record(self) -> None:
        benchmarking.benchmarker.benchmark_gpu_with_cuda_graph()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


def arena() -> Harness:
    """One of a workload with one example, whose calls are timed on the CPU."""
    made: Any = Harness.__new__(Harness)
    made.workload, made.device, made._held_before = Workload(torch.sin, (Example((torch.ones(2),)),)), "cpu", None
    made._clock = Clock("cpu")
    return made  # type: ignore[no-any-return]


def test_another_may_measure_while_a_compiler_works_on_cores_of_its_own(
    worker: Callable[..., list[bool]], other: Other, compiler: Compiler
) -> None:
    told = worker()
    found: list[bool] = []
    compiler.works = lambda: found.append(other.may_measure())
    calls = [compiler.compile, *[lambda: found.append(other.may_measure())] * 3]
    arena().first_calls([lambda: calls.pop(0)()])
    assert found == [True, False, False, False], "what was compiled runs in the worker's share"
    assert told == []


@pytest.mark.parametrize(("own_cores", "device"), [(None, "cuda"), ("0", "cuda"), ("1", "cpu")])
def test_without_cores_of_its_own_a_compiler_keeps_its_share(
    worker: Callable[..., list[bool]], other: Other, compiler: Compiler, own_cores: str | None, device: str
) -> None:
    worker(own_cores, device)
    found: list[bool] = []
    compiler.works = lambda: found.append(other.may_measure() or "benchmark_gpu" in vars(benchmarking.benchmarker))
    arena().first_calls([compiler.compile])
    with device_lock.aside():
        found.append(other.may_measure())
    assert found == [False] * 5


def test_a_kernel_is_timed_when_nobody_measures_and_waiting_costs_nothing(
    worker: Callable[..., list[bool]], other: Other, compiler: Compiler
) -> None:
    told = worker()
    heard: list[str] = []

    def works() -> None:
        with contextlib.ExitStack() as measuring:
            measuring.enter_context(other.alone())
            measuring.callback(heard.append, "measured")
            threading.Timer(1.0, lambda: (measuring.close(), other.leave())).start()
            compiler.time()
        compiler.record()
        heard.append("aside" if other.may_measure() else "shares")

    compiler.works = works
    compiler.times = lambda: heard.append("aside" if other.may_measure() else "shares")
    calls: list[Callable[[], None]] = [compiler.compile, *[lambda: None] * 3]
    start = time.monotonic()
    cold = arena().first_calls([lambda: calls.pop(0)()])
    assert time.monotonic() - start > 0.9
    assert heard == ["measured", "shares", "shares", "aside"]
    assert told == [True, False]
    assert device_lock.total_wait_s() > 0.9
    assert cold < 0.9, "the second in which another measured is none of it"


def test_kernels_timed_in_each_other_and_in_threads_drop_nobodys_share(tmp_path: Path) -> None:
    mine, other = device_lock.DeviceLock("cuda-0", bool, tmp_path), Other(tmp_path)
    began, go_on, measures = threading.Event(), threading.Event(), threading.Event()

    def time_kernel() -> None:
        with mine.share_temporarily(), mine.share_temporarily():
            began.set()
            go_on.wait(10)

    def measure() -> None:
        with other.alone():
            measures.set()
        other.leave()

    mine.share()
    with mine.aside(), mine.aside():
        threads = [threading.Thread(target=target, daemon=True) for target in (time_kernel, measure)]
        threads[0].start()
        assert began.wait(10)
        threads[1].start()
        time.sleep(0.2)  # it stands at the door: whoever locks anew waits for one that waits for the other thread
        with mine.share_temporarily():
            with mine.share_temporarily():
                pass
            assert not measures.wait(0.1)
        assert not measures.wait(0.1), "the other thread's share is gone"
        go_on.set()
        assert measures.wait(10)
        for thread in threads:
            thread.join(10)
        assert other.may_measure()
    assert not other.may_measure()


def test_a_compiler_that_raises_leaves_everything_as_it_was(
    worker: Callable[..., list[bool]], other: Other, compiler: Compiler
) -> None:
    def fails() -> None:
        raise ValueError("no such kernel")

    worker()
    compiler.works, compiler.times = compiler.time, fails
    before = compile_fx.fx_codegen_and_compile, dict(vars(benchmarking.benchmarker))
    with pytest.raises(ValueError, match="no such kernel"):
        arena().first_calls([compiler.compile])
    assert (compile_fx.fx_codegen_and_compile, dict(vars(benchmarking.benchmarker))) == before
    assert not other.may_measure()


@dataclass(frozen=True)
class Aside:
    """A worker's assignment: time a kernel as it compiles, once another worker measures at the GPU of this name."""

    gpu: str
    task: str = f"{__name__}:times_a_kernel"

    def variables(self) -> dict[str, Any]:
        return {device_lock.OWN_CORES: "1"}


def times_a_kernel(job: Aside, stage: Callable[[str], None]) -> str:
    device_lock.name_of = lambda _device: job.gpu
    device_lock.join("cuda")
    with device_lock.aside():
        stage("compile")
        while Other(None, job.gpu).may_measure():
            time.sleep(0.01)
        with device_lock.share_temporarily():
            return "timed"


def test_waiting_to_time_a_kernel_is_not_on_the_workers_account() -> None:
    job, heard = Aside(f"cuda-{os.getpid()}"), []
    other = Other(None, job.gpu)
    with contextlib.ExitStack() as held:
        held.callback(other.leave)

        def hear(stage: str) -> None:
            if stage == "compile" and "compile" not in heard:
                held.enter_context(other.alone())
                threading.Timer(3, held.close).start()
            heard.append(stage)

        answer = ProcessLauncher().run(job, Limits(2, 8 * 2**30), hear)
    assert answer == '"timed"'
    assert heard == ["compile", WAITING, "compile"]


@pytest.mark.parametrize(
    "setting",
    [
        {"autotune_in_subproc": True},
        {"max_autotune_gemm_backends": "ATEN,TRITON,CUTLASS"},
        {"triton.autotune_at_compile_time": True},
        {},
    ],
)
def test_where_kernels_are_timed_elsewhere_nobody_steps_aside(
    monkeypatch: pytest.MonkeyPatch, worker: Callable[..., list[bool]], compiler: Compiler, setting: dict[str, Any]
) -> None:
    worker()
    found: list[bool] = []
    compiler.works = lambda: found.append(device_lock._joined._is_away())  # type: ignore[union-attr]
    with harness.compiling_aside(), inductor.patch(setting):
        compiler.compile()
    monkeypatch.setattr(harness, "NAMES", (*harness.NAMES, PrivateName("torch._inductor", "no_such_name")))
    with harness.compiling_aside():
        compiler.compile()
    assert found == [not setting, False]


@pytest.mark.slow
def test_inductor_compiles_forward_and_backward_by_the_names_that_are_looked_up(
    monkeypatch: pytest.MonkeyPatch, worker: Callable[..., list[bool]]
) -> None:
    worker()
    away: list[int] = []
    leave = device_lock._joined.leave  # type: ignore[union-attr]
    monkeypatch.setattr(device_lock._joined, "leave", lambda: (away.append(0), leave()))
    compiled = torch.compile(lambda x: (x.sin() * 2).sum(0))
    with inductor.patch(force_disable_caches=True), harness.compiling_aside():
        compiled(torch.ones(4, 4, requires_grad=True)).sum().backward()
    assert len(away) >= 2  # for the frame, and for the backward pass, which is compiled when it runs
    assert not device_lock._joined._is_away()  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_frame_is_traced_aside_and_frozen_weights_are_folded_in_the_worker_s_share(
    worker: Callable[..., list[bool]], other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    found: list[tuple[str, bool]] = []
    backend: Any = importlib.import_module("torch._dynamo.convert_frame")
    folding: Any = importlib.import_module("torch._inductor.freezing")

    def spy_on(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            found.append((name, other.may_measure()))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, spy)

    spy_on(backend, "_compile")
    spy_on(folding, "freeze")
    spy_on(compile_fx, "fx_codegen_and_compile")
    model = torch.nn.Linear(4, 4).eval()
    with torch.no_grad(), inductor.patch(freezing=True), harness.compiling_aside():
        torch.compile(model)(torch.ones(2, 4))
    assert found == [("_compile", True), ("freeze", False), ("fx_codegen_and_compile", True)]
    assert not other.may_measure()


def _triple(x: Any, length: Any) -> None:
    """A kernel, compiled here only as far as it is bound."""


def test_kernels_of_triton_are_compiled_aside_wherever_a_first_call_needs_them(
    worker: Callable[..., list[bool]], other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, jit = pytest.importorskip("triton"), importlib.import_module("triton.runtime.jit")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target))
    worker()
    found: list[bool] = []

    def compile_kernel(*_args: Any, **_options: Any) -> None:
        found.append(other.may_measure())

    for owner in (triton, triton.compiler):
        monkeypatch.setattr(owner, "compile", compile_kernel)
    monkeypatch.setattr(jit, "driver", driver)
    kernel = jit.JITFunction(_triple)

    def launch() -> None:
        kernel.create_binder()  # where Triton takes its compiler from, on a kernel's first launch
        kernel.compile()
        triton.compile()
        found.append(other.may_measure())

    arena().first_calls([launch])
    assert found[:3] == [True, True, False]
    assert triton.compile is triton.compiler.compile is compile_kernel
    assert not other.may_measure()
