"""One candidate in one process: all its effects end there, and each kind of end is told apart."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
import types
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from brief import BRIEF
from torchwise._torch import inductor
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import BaselineError, GraphBreakError, TargetError, UnsupportedError, WorkloadError
from torchwise.measure import device_lock
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS, EffortProfile
from torchwise.plan.trait import Trait
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Duel, Failure, FailureKind, Measurement, Outcome, Trial, TrialState, codec
from torchwise.trial import (
    Job,
    Limits,
    ProcessLauncher,
    ProcessSettings,
    hold_duel,
    inspect_workload,
    inspection,
    loading,
    own_caches,
    try_plan,
    worker,
)
from torchwise.trial.full_graph import require_full_graph
from torchwise.trial.inspection import inspect
from torchwise.trial.launcher import WAITING, _describe_place, _tell_limit
from torchwise.trial.worker import MessageKind, UserError

TARGETS = Path(__file__).parent.parent / "targets" / "misbehaving.py"
GOOD, BAD = Plan(threads=1), Plan(threads=3)
GIB = 2**30
MAIN = sys.modules["__main__"]
SETTINGS = ProcessSettings("highest", "float32", 2, False, True, False)


@pytest.fixture(scope="module")
def launcher() -> ProcessLauncher:
    return ProcessLauncher()


def job(factory: str, task: str = "try") -> Job:
    spec = WorkloadSpec(f"{TARGETS}:{factory}")
    return Job(task, spec, traits=frozenset({"module"}), effort=BRIEF, settings=SETTINGS)  # type: ignore[arg-type]


def run_trial(
    launcher: ProcessLauncher, factory: str, plan: Plan = BAD, *, seconds: float = 60, memory: int = 8 * GIB
) -> Trial:
    trial = Trial(0, plan, TrialState.RUNNING)
    return try_plan(launcher, job(factory), trial, Limits(seconds, memory), lambda stage: None)


@pytest.mark.parametrize(
    ("factory", "kind", "said"),
    [
        ("segfaults", FailureKind.DIED, "SIGSEGV"),
        ("exits", FailureKind.DIED, "exit code 7"),
        ("raises", FailureKind.RAISED, "ValueError: no answer on three threads"),
        ("allocates", FailureKind.OUT_OF_MEMORY, "allocate"),
        ("interrupts", FailureKind.RAISED, "KeyboardInterrupt"),
    ],
)
def test_each_way_to_fail_is_told_apart(launcher: ProcessLauncher, factory: str, kind: FailureKind, said: str) -> None:
    trial = run_trial(launcher, factory)
    assert trial.state is TrialState.FAIL
    assert trial.failure is not None
    assert (trial.failure.kind, trial.failure.stage) == (kind, "compile")
    assert said in trial.failure.message
    assert said in trial.reason
    assert not trial.is_verified


def test_a_hang_is_ended_at_the_limit_with_all_its_children(launcher: ProcessLauncher) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    start = time.monotonic()
    trial = run_trial(launcher, "hangs", seconds=3)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.TIMED_OUT
    assert re.search(r"limit of 3 s, in .*hangs? \(.*\.py:\d+\)", trial.failure.message), trial.failure.message
    assert "most recent call first" in trial.failure.traceback
    assert time.monotonic() - start < 60
    after = {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}
    # The workers' server and its resource tracker may have come. A worker may not have stayed. One that is just ending
    # has no command line any more.
    names = [" ".join(psutil.Process(pid).cmdline()) for pid in after - before if psutil.pid_exists(pid)]
    assert all("forkserver" in name or "resource_tracker" in name for name in filter(None, names)), names


@pytest.mark.parametrize(
    ("file", "shown"),
    [("/venv/lib/site-packages/torch/nn/linear.py", "torch/nn/linear.py"), ("/home/me/model.py", "/home/me/model.py")],
)
def test_the_place_of_a_hang_names_a_library_without_its_folder(file: str, shown: str) -> None:
    stacks = 'Thread 0x1:\n  File "/other.py", line 1 in run\n\nCurrent thread 0x2 (most recent call first):\n'
    assert _describe_place(f'{stacks}  File "{file}", line 134 in forward\n') == f", in forward ({shown}:134)"
    assert _describe_place("killed") == ""


@pytest.mark.parametrize(("limit_s", "shown"), [(0.44, "0.44 s"), (2.0, "2 s"), (9.96, "10 s"), (1234.4, "1234 s")])
def test_a_limit_of_less_than_a_second_is_not_told_as_nothing(limit_s: float, shown: str) -> None:
    assert _tell_limit(limit_s) == f"passed its limit of {shown}"


def test_a_hang_is_ended_with_the_command_that_asked_for_it(launcher: ProcessLauncher) -> None:
    failure = launcher.run(replace(job("hangs"), plan=BAD), Limits(60, 8 * GIB, end_s=2), lambda stage: None)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.TIMED_OUT
    assert "passed its limit of 2 s" in failure.message


def test_a_compile_time_out_ends_a_candidate_that_compiles_for_ever(launcher: ProcessLauncher) -> None:
    start, limits = time.monotonic(), Limits(60, 8 * GIB, compile_s=1)
    trial = try_plan(launcher, job("hangs"), Trial(0, BAD, TrialState.RUNNING), limits, lambda stage: None)
    assert trial.failure is not None
    assert (trial.failure.kind, trial.failure.stage) == (FailureKind.TIMED_OUT, "compile")
    assert "passed the compile time-out of 1 s" in trial.reason
    assert time.monotonic() - start < 30
    good = try_plan(launcher, job("wrong"), Trial(0, GOOD, TrialState.RUNNING), limits, lambda stage: None)
    assert good.is_verified, "other stages have no such limit"


def test_a_worker_finds_the_line_where_the_graph_breaks(launcher: ProcessLauncher) -> None:
    asked = Job("inspect", WorkloadSpec("zoo:tutorial.break_branch@small"), settings=SETTINGS)
    with pytest.raises(
        GraphBreakError, match=r"the graph breaks: .*, at \S*breaks\.py:\d+, in \w+: `.*if .*`\. "
    ) as found:
        require_full_graph(launcher, asked, Limits(60, 8 * GIB), lambda stage: None)
    assert found.value.exit_code == 1


def test_a_server_that_is_not_ready_in_time_holds_nobody_up(
    launcher: ProcessLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading PyTorch may take longer than a short budget on a busy machine. The worker then ends by itself."""
    ready, real = threading.Event(), forkserver.read_signed
    begun: list[int] = []

    def read_late(sentinel: int) -> int:
        ready.wait(20)
        begun.append(real(sentinel))
        return begun[0]

    monkeypatch.setattr(forkserver, "read_signed", read_late)
    begin = time.monotonic()
    failure = launcher.run(job("wrong"), Limits(60, 8 * GIB, end_s=0.3), lambda stage: None)
    assert time.monotonic() - begin < 10
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.stage) == (FailureKind.TIMED_OUT, "start")
    assert sys.modules["__main__"] is MAIN
    ready.set()
    end = time.monotonic() + 30
    while time.monotonic() < end and (not begun or psutil.pid_exists(begun[0])):
        time.sleep(0.05)
    assert begun
    assert not psutil.pid_exists(begun[0])


def test_a_memory_hog_is_ended_before_it_hurts_anybody(launcher: ProcessLauncher) -> None:
    trial = run_trial(launcher, "hogs", memory=2 * GIB)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "its limit is 2.0 GiB" in trial.failure.message


@pytest.mark.parametrize(("factory", "said"), [("nan", "not finite"), ("wrong", "off by"), ("wrong_dtype", "dtype")])
def test_a_wrong_answer_completes_unproven_and_is_never_timed(
    launcher: ProcessLauncher, factory: str, said: str
) -> None:
    trial = run_trial(launcher, factory)
    assert trial.state is TrialState.COMPLETE
    assert trial.verdict is not None
    assert trial.verdict.outcome is Outcome.FAIL
    assert said in trial.reason
    assert trial.measurement is None
    assert not trial.is_verified


def test_a_good_candidate_is_proven_and_timed(launcher: ProcessLauncher) -> None:
    trial = run_trial(launcher, "wrong", GOOD)
    assert trial.is_verified, trial.reason
    assert trial.measurement is not None
    assert trial.measurement.speedup.low > 2
    assert trial.costs is not None
    assert trial.costs.cold_s < 5, "nothing is compiled"


def test_a_candidate_that_cannot_lead_is_stopped_early(launcher: ProcessLauncher) -> None:
    trial = Trial(0, GOOD, TrialState.RUNNING)
    pruned = try_plan(launcher, replace(job("wrong"), prune_below=50.0), trial, Limits(60, 8 * GIB), lambda stage: None)
    assert pruned.state is TrialState.PRUNED
    assert "could no longer lead" in pruned.reason
    assert not pruned.is_verified


def test_stages_are_heard_in_order(launcher: ProcessLauncher) -> None:
    heard: list[str] = []
    try_plan(launcher, job("wrong"), Trial(0, GOOD, TrialState.RUNNING), Limits(60, 8 * GIB), heard.append)
    # A test beside this one may be measuring: a trial that waits names the stage it goes on with, the start included.
    stages = [stage for stage in heard if stage not in (WAITING, "start")]
    assert [stage for stage, _ in itertools.groupby(stages)] == ["compile", "verify", "measure"]


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [
        (f"{TARGETS}:fail_in_factory", WorkloadError, "RuntimeError: no weights here"),
        (f"{TARGETS}:nothing", TargetError, "no 'nothing'"),
        (f"{TARGETS}:refuses", BaselineError, "(4x8 and 16x16); its inputs were [0][0] float32[4, 8]"),
        (f"{TARGETS}:dies", BaselineError, "SIGSEGV"),
    ],
)
def test_what_is_the_users_own_fault_is_raised_with_what_was_found(
    launcher: ProcessLauncher, target: str, error: type[Exception], said: str
) -> None:
    inspection = Job("inspect", WorkloadSpec(target), effort=BRIEF)
    with pytest.raises(error, match=re.escape(said)):
        inspect_workload(launcher, inspection, Limits(60, 8 * GIB), lambda stage: None)


class OwnError(WorkloadError):
    """A class of a plug-in."""


@pytest.mark.parametrize(
    ("raised", "kind"), [(TargetError("a|b: no\nsuch"), TargetError), (OwnError("a|b: no\nsuch"), WorkloadError)]
)
def test_an_error_of_the_users_crosses_whole_and_as_a_class_that_is_known(
    raised: TargetError | OwnError, kind: type[Exception]
) -> None:
    message_kind, text = worker._report(raised, "load")
    assert message_kind is MessageKind.ERROR
    error = codec.from_json(text, UserError).to_error()
    assert (type(error), str(error)) == (kind, str(raised))


def test_inspection_tells_volumes_from_images_and_finds_single_rows(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text(
        "import torch\n"
        "def volumes():\n    return torch.nn.Conv3d(8, 16, 3), (torch.randn(1, 8, 12, 12, 12),)\n"
        "def rows():\n    return torch.nn.Linear(1024, 1024), (torch.randn(1, 1024),)\n"
    )
    found = {
        name: inspect(Job("inspect", WorkloadSpec(f"{file}:{name}"), effort=BRIEF), lambda _stage: None).traits
        for name in ("volumes", "rows")
    }
    assert found["volumes"] & {"conv", "conv3d", "one_row"} == {"conv3d"}
    assert found["rows"] & {"conv", "conv3d", "one_row"} == {"one_row"}


def test_inspection_looks_at_what_every_example_runs(tmp_path: Path) -> None:
    """A decoding program mostly adds to its cache. The fewer calls that begin one are compiled as well."""
    file = tmp_path / "caches.py"
    file.write_text(
        "import torch\nfrom torchwise.workload import Example, Workload\n"
        "def join(kept, new):\n    return torch.cat([kept, new.mT], -1)\n"
        "def make(*kept):\n    new = torch.randn(2, 3, 4)\n"
        "    return Workload(join, tuple(Example((one, new)) for one in kept))\n"
        "def adds():\n    return make(torch.ones(2, 4, 1))\n"
        "def begins():\n    return make(torch.ones(2, 4, 1), torch.empty(0))\n"
    )
    adds, begins = (
        inspect(Job("inspect", WorkloadSpec(f"{file}:{name}"), effort=BRIEF), lambda _stage: None).traits
        for name in ("adds", "begins")
    )
    assert Trait.RESTRIDED not in adds
    assert Trait.RESTRIDED in begins


@pytest.mark.parametrize(
    ("profile", "disturbed", "seconds"),
    [
        (EFFORTS["quick"], "", [2.0]),
        (EFFORTS["thorough"], "", [2.0]),
        (BRIEF, "", [BRIEF.measure_s]),
        (EFFORTS["thorough"], "threads wait", [2.0, 15.0]),
        (EFFORTS["standard"], "too far apart", [2.0, 5.0]),
        (EFFORTS["quick"], "too far apart", [2.0]),
    ],
)
def test_the_plain_model_is_timed_for_two_seconds_unless_it_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, profile: EffortProfile, disturbed: str, seconds: list[float]
) -> None:
    asked: list[float] = []

    def measure(*sides: Any) -> Any:
        asked.append(sides[-1].budget_s)
        speedup = types.SimpleNamespace(is_usable=disturbed != "too far apart")
        return types.SimpleNamespace(is_contended=disturbed == "threads wait", speedup=speedup)

    monkeypatch.setattr("torchwise.trial.inspection.measure_pair", measure)
    inspection._time_plain(None, None, profile)  # type: ignore[arg-type]
    assert asked == seconds


def test_inspection_finds_what_the_model_is(launcher: ProcessLauncher) -> None:
    spec = WorkloadSpec("zoo:spinlock.operator@small")
    found = inspect_workload(launcher, Job("inspect", spec, effort=BRIEF), Limits(60, 8 * GIB), lambda s: None)
    assert {"module", "conv", "gemm", "stochastic", "float32", "repeated_blocks"} <= found.traits
    assert "conv3d" not in found.traits
    assert any("training mode" in note for note in found.notes)
    assert len(found.measurement.candidate_s) == len(found.measurement.baseline_s) >= 3
    assert found.shares["conv"] > 0.01, "more on a machine that has nothing else to do"
    assert found.operators is not None
    assert found.operators > 10


@pytest.mark.parametrize("target", ["yields", "awaits"])
def test_inspection_says_that_a_generator_is_timed_for_making_it_only(launcher: ProcessLauncher, target: str) -> None:
    job = Job("inspect", WorkloadSpec(f"{TARGETS}:{target}", device="cpu"), effort=BRIEF)
    found = inspect_workload(launcher, job, Limits(60, 8 * GIB), lambda stage: None)
    assert any("timed for making it only" in note for note in found.notes)


@pytest.mark.parametrize(("operation", "has_form"), [("dynamic_rollout", True), ("rollout", False)])
def test_inspection_finds_recurrent_nets_and_declared_static_forms(
    launcher: ProcessLauncher, operation: str, has_form: bool
) -> None:
    inspection = Job("inspect", WorkloadSpec(f"zoo:energy_flow.{operation}@small"), effort=BRIEF)
    traits = inspect_workload(launcher, inspection, Limits(60, 8 * GIB), lambda stage: None).traits
    assert "rnn" in traits
    assert "repeats" not in traits, "the steps inside an RNN are none that a compiler could roll"
    assert ("static_form" in traits) is has_form


@pytest.mark.parametrize(("operation", "repeats"), [("gross_pitaevskii", True), ("gross_pitaevskii_step", False)])
def test_inspection_finds_complex_numbers_and_steps_that_repeat(
    launcher: ProcessLauncher, operation: str, repeats: bool
) -> None:
    inspection = Job("inspect", WorkloadSpec(f"zoo:ivhl.{operation}@small"), effort=BRIEF)
    traits = inspect_workload(launcher, inspection, Limits(60, 8 * GIB), lambda stage: None).traits
    assert "complex" in traits
    assert ("repeats" in traits) is repeats


def test_the_parent_needs_no_torch_and_no_guard_around_main(tmp_path: Path) -> None:
    """A script without `if __name__ == "__main__"` runs once, and workers do not run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "print('script runs')\n"
        "from torchwise.trial import Job, Limits, ProcessLauncher, inspect_workload\n"
        "from torchwise.plan.workload_spec import WorkloadSpec\n"
        "job = Job('inspect', WorkloadSpec('zoo:tutorial.fusion_demo@small'))\n"
        "found = inspect_workload(ProcessLauncher(), job, Limits(60, 2**33), lambda s: None)\n"
        "print(found.description, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("script runs") == 1, done.stderr
    assert "FusionDemo" in done.stdout
    assert done.stdout.rstrip().endswith("False")


@dataclass(frozen=True)
class Look:
    """A worker's assignment: look at what its server left it."""

    task: str = f"{__name__}:describe_collector"

    def variables(self) -> dict[str, Any]:
        return {}


def describe_collector(_job: Look, _stage: Any) -> str:
    is_loaded = inductor.COMPILER_MODULE in sys.modules
    return f"compiler loaded {is_loaded}, left out {gc.get_freeze_count() > 100_000}, collects {gc.isenabled()}"


def test_workers_collect_garbage_but_walk_through_nothing_that_their_server_loaded(launcher: ProcessLauncher) -> None:
    found = launcher.run(Look(), Limits(60, 8 * GIB), lambda stage: None)
    assert found == '"compiler loaded True, left out True, collects True"'


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    mark = tmp_path / "pids"
    script.write_text(
        "from pathlib import Path\n"
        "import psutil\n"
        "from torchwise.trial import *\n"
        "from torchwise.records import Trial, TrialState\n"
        "from torchwise.plan import Plan\n"
        "from torchwise.workload import WorkloadSpec\n"
        f"job = Job('try', WorkloadSpec({str(TARGETS) + ':hangs'!r}))\n"
        "def stage(name):\n"
        "    pids = [p.pid for p in psutil.Process().children(recursive=True)]\n"
        f"    Path({str(mark)!r}).write_text(' '.join(map(str, pids)))\n"
        "try_plan(ProcessLauncher(), job, Trial(0, Plan(threads=3), TrialState.RUNNING), Limits(600, 2**33), stage)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int(pid) for pid in mark.read_text().split()]
    assert pids
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(map(_alive, pids)):
        time.sleep(0.1)
    left = [" ".join(psutil.Process(pid).cmdline()) for pid in pids if _alive(pid)]
    assert not [name for name in left if "forkserver" in name], left


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_candidates_caches_are_its_own_and_are_removed(launcher: ProcessLauncher) -> None:
    seen: list[str] = []

    class Spy:
        def run(self, given: Job, limits: Limits, on_stage: object) -> object:
            seen.append(given.cache_dir)
            assert os.path.isdir(given.cache_dir)
            assert not os.listdir(given.cache_dir)
            return launcher.run(given, limits, on_stage)  # type: ignore[arg-type]

    for _ in range(2):
        try_plan(Spy(), job("wrong"), Trial(0, GOOD, TrialState.RUNNING), Limits(60, 8 * GIB), lambda s: None)  # type: ignore[arg-type]
    assert len(set(seen)) == 2
    assert not any(os.path.exists(folder) for folder in seen)


def test_the_users_own_start_method_is_left_alone() -> None:
    before = dict(os.environ)  # importing Lightning sets one of the variables that the workers' server is given
    inspect_workload(ProcessLauncher(), job("wrong", "inspect"), Limits(60, 8 * GIB), lambda stage: None)
    assert dict(os.environ) == before
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork", "spawn", "forkserver")
    assert sys.modules["__main__"] is MAIN


def test_a_main_that_comes_while_a_worker_starts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit puts its own there, in other threads.

    The one from before the start would belong to a page that is over.
    """
    from multiprocessing.context import ForkServerProcess

    start, page, seen = ForkServerProcess.start, types.ModuleType("__main__"), []

    def draws_a_page(process: ForkServerProcess) -> None:
        seen.append(sys.modules["__main__"])
        start(process)
        sys.modules["__main__"] = page

    monkeypatch.setattr(ForkServerProcess, "start", draws_a_page)
    inspect_workload(ProcessLauncher(), job("wrong", "inspect"), Limits(60, 8 * GIB), lambda stage: None)
    assert seen[0] not in (MAIN, page)
    assert sys.modules["__main__"] is page


def test_the_look_at_every_operator_prints_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing a storage prints each of its bytes, and on a GPU waits for each."""
    import torch

    from torchwise.trial.inspection import _trace_operators

    monkeypatch.setattr(torch.UntypedStorage, "__repr__", lambda _: pytest.fail("it was printed"))
    x = torch.ones(4)

    def shares() -> None:
        for _ in range(40):
            torch.empty(0).set_(x.untyped_storage(), 0, (4,)).mul(2)

    traits, operators = _trace_operators(shares)
    assert "repeats" in traits
    assert operators == 3 * 40


def test_the_largest_example_is_called_first() -> None:
    from types import SimpleNamespace

    import torch

    from torchwise.trial.harness import Harness
    from torchwise.workload import Example, Workload

    def call_example(number: int) -> float:
        order.append(number)
        return 0.1

    order: list[int] = []
    arena: Any = Harness.__new__(Harness)
    examples = tuple(Example((torch.ones(rows, 4),), {"y": torch.ones(1)}) for rows in (2, 8, 4))
    arena.workload, arena.device, arena._held_before = Workload(torch.sin, examples), "cpu", None
    arena._clock = SimpleNamespace(once=lambda call: call())
    arena.first_calls([functools.partial(call_example, number) for number in range(3)])
    assert order[:3] == [1, 2, 0]


def test_a_worker_runs_parts_of_a_program_plainly() -> None:
    assert Job("try", WorkloadSpec("zoo:tutorial.branch")).variables()["TORCHWISE_DISABLE"] == "1"


def test_a_worker_tells_which_part_of_a_plan_changes_nothing() -> None:
    kind, text = worker._report(no_effect(("scope", "rolled"), "nothing repeats"), "compile")
    failure = codec.from_json(text, Failure)
    assert (kind, failure.kind, failure.about) == ("failure", FailureKind.UNSUPPORTED, (("scope", "rolled"),))
    assert failure.message == "scope 'rolled' changes nothing here: nothing repeats"
    assert codec.from_json(worker._report(UnsupportedError("no GPU"), "load")[1], Failure).about == ()


def test_a_refusal_tells_the_parts_of_the_plan_that_it_is_about() -> None:
    plan = Plan(backend="inductor", transforms=("isolate_rnn",), mode="max-autotune", options=(("freezing", True),))
    error = UnsupportedError("no", ("backend", "scope", "transforms", ("options", ("freezing", True))))
    text = worker._report(error, "compile", plan)[1]
    about = codec.from_json(text, Failure).about
    assert about == (
        ("backend", "inductor"),
        ("scope", "whole"),
        ("transforms", ("isolate_rnn",)),
        ("options", ("freezing", True)),
    )
    earlier = '{"kind":"unsupported","stage":"compile","message":"no","no_effect":["scope","rolled"]}'
    assert codec.from_json(earlier, Failure).about == (("scope", "rolled"),)


@pytest.mark.usefixtures("two_threads")
def test_a_gpu_that_is_not_there_is_said_before_cuda_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device_lock, "join", lambda _device: pytest.fail("it asked"))
    told = job("good")
    with pytest.raises(WorkloadError, match="device is 'cuda', but PyTorch"):
        loading.load(replace(told, workload=replace(told.workload, device="cuda")))


def test_a_model_that_raises_is_told_with_its_line(launcher: ProcessLauncher, tmp_path: Path) -> None:
    file = tmp_path / "raising.py"
    file.write_text(
        "import torch\n\ndef f():\n    return torch.ones(2) @ torch.ones(3)\n\ndef make():\n    return f, ()\n"
    )
    with pytest.raises(BaselineError) as error:
        inspect_workload(launcher, Job("inspect", WorkloadSpec(f"{file}:make")), Limits(60, 8 * GIB), lambda _: None)
    assert "raising.py:4, in f" in str(error.value)
    assert "its inputs were none" in str(error.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [("None", True), ("x * float('nan')", True), ("(None, x[:0])", True), ("(None, x)", False), ("1.0", False)],
)
def test_a_model_whose_answers_prove_nothing_is_told(tmp_path: Path, answer: str, told: bool) -> None:
    file = tmp_path / "models.py"
    file.write_text(f"import torch\n\ndef make():\n    return (lambda x: {answer}), (torch.ones(4),)\n")
    found = inspect(Job("inspect", WorkloadSpec(f"{file}:make"), effort=BRIEF), lambda _stage: None)
    assert any("returns no number" in note for note in found.notes) is told


# ---- duels


def compare_plans(launcher: ProcessLauncher, factory: str, plan: Plan, rival: Plan) -> Duel:
    asked = replace(job(factory), plan=plan)
    return hold_duel(launcher, asked, rival, Limits(60, 8 * GIB), lambda stage: None)


def test_a_duel_is_the_rival_s_time_over_the_plan_s(launcher: ProcessLauncher) -> None:
    """One thread takes a little over half a millisecond, and two take ten, if nobody is in the way."""
    found = compare_plans(launcher, "wrong", GOOD, Plan(threads=2))
    assert found.rival == Plan(threads=2)
    assert found.measurement is not None, found.failure
    assert found.measurement.speedup.mid > 2
    assert found.measurement.candidate_time.mid < found.measurement.baseline_time.mid
    assert found.seconds > 0


def test_a_duel_that_dies_is_a_failure(launcher: ProcessLauncher) -> None:
    found = compare_plans(launcher, "segfaults", GOOD, BAD)
    assert found.measurement is None
    assert found.failure is not None
    assert (found.failure.kind, found.failure.stage) == (FailureKind.DIED, "compile")


def test_a_duel_is_timed_more_closely_than_a_quick_trial_and_finds_what_both_compiled(tmp_path: Path) -> None:
    told: list[tuple[Job, set[str]]] = []

    class Spy:
        def run(self, job: Job, limits: Limits, on_stage: object) -> Failure:
            told.append((job, {file.name for file in Path(job.cache_dir).iterdir()}))
            return Failure(FailureKind.DIED, "compile", "")

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of the {name}").touch()
    caches = [str(tmp_path / name) for name in ("one", "gone", "other")]
    hold_duel(Spy(), replace(job("wrong"), plan=GOOD), BAD, Limits(60, 8 * GIB), lambda stage: None, caches)
    [(asked, found)] = told
    assert (asked.task, asked.plan, asked.rival, asked.effort.half_width) == ("duel", GOOD, BAD, 0.01)
    assert found == {"of the one", "of the other"}
    assert not Path(asked.cache_dir).exists()
    assert (tmp_path / "one").exists()


@pytest.mark.parametrize(
    ("expected_s", "times"), [((2.0, 1.0), 0), ((1.4, 0.7), 0), ((None, None), 0), ((1.0, 1.0), 2), ((2.0, 0.4), 2.5)]
)
def test_a_duel_in_which_one_side_is_held_up_tells_nothing(expected_s: tuple[float, float], times: float) -> None:
    """A plan on two cores waits for another program on one of them. Its rival on the other core does not."""

    class Timed:
        def run(self, asked: Job, limits: Limits, on_stage: object) -> str:
            assert asked.expected_s == expected_s
            return codec.to_json(Measurement((2.0,) * 9, (1.0,) * 9))

    asked = replace(job("wrong"), plan=GOOD, expected_s=expected_s)
    found = hold_duel(Timed(), asked, BAD, Limits(60, 8 * GIB), lambda stage: None)
    if times:
        assert (found.measurement, str(found.failure)) == (
            None,
            f"was held up in measure: one of the plans took {times:.1f} times as long as in its trial",
        )
    else:
        assert (found.measurement and found.measurement.speedup.mid, found.failure) == (0.5, None)


def test_caches_that_somebody_keeps_stay(launcher: ProcessLauncher) -> None:
    with own_caches() as folder:
        kept = replace(job("wrong"), cache_dir=folder)
        try_plan(launcher, kept, Trial(0, GOOD, TrialState.RUNNING), Limits(60, 8 * GIB), lambda stage: None)
        assert Path(folder).exists()
    assert not Path(folder).exists()
