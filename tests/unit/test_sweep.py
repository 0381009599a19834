"""Many studies side by side: the requests of a manifest, and the end of each study, with a made-up `torchwise tune`."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.errors import InputError
from torchwise.plan import Numerics, Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec
from torchwise.study import Request, cluster
from torchwise.study.cluster import Manifest, Slot, SweepResult, Task, choice, read_manifest, run_sweep
from torchwise.study.cluster import sweep as module
from torchwise.study.cluster.sweep import RETRIES

command = importlib.import_module("torchwise.cli.sweep")  # of this name the package has the function
CPU = Slot(frozenset({"cpu"}))
GPUS = [Slot(frozenset({"cuda"}), (), {"CUDA_VISIBLE_DEVICES": str(gpu)}) for gpu in range(2)]

TUNE = """
import json, os, pathlib, signal, sys, time
words = dict(word.lstrip("-").split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
target, file = sys.argv[-1], pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
log = pathlib.Path(__file__).parent / f"{target}.log"
begun = log.read_text().count("begins") if log.exists() else 0
with log.open("a") as out:
    print("begins", time.monotonic(), os.environ.get("CUDA_VISIBLE_DEVICES"), words, file=out, flush=True)
    print("it is tuned", file=sys.stderr, flush=True)
    if target == "dies" or (target == "dies_once" and not begun):
        os.kill(os.getpid(), signal.SIGKILL)
    if target == "unnamed":
        os.kill(os.getpid(), signal.SIGRTMIN + 1)
    if target == "broken":
        error = "torchwise: the model itself raised:\\nno weights"
        pathlib.Path(os.environ["TORCHWISE_ERROR_FILE"]).write_text(error)
        print("a thread of the model ends", file=sys.stderr)
        sys.exit(3)
    if target == "breaks_off":
        print("torchwise: no memory", file=sys.stderr)
        sys.exit(1)
    if target == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        time.sleep(60 if target in ("long", "deaf") else 0.3)
    except KeyboardInterrupt:
        print("kept", file=out)
        sys.exit(130)
    print("ends", time.monotonic(), "store", os.environ.get("TORCHWISE_STORE"), file=out)
file.write_text(json.dumps({"decision": {"reason": f"Run {target}: 2 times eager's speed"}}))
"""


def tasks(*targets: str, device: str = "cpu") -> list[Task]:
    return [Task(target, device) for target in targets]


class Sweep:
    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        (folder / "tune.py").write_text(TUNE)

    def run(self, tasks: list[Task], slots: list[Slot]) -> list[SweepResult]:
        return run_sweep(
            tasks, slots, [sys.executable, "-S", str(self.folder / "tune.py")], dict(os.environ), self.said.append
        )

    def log(self, target: str) -> str:
        file = self.folder / f"{target}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_each_study_comes_back_in_order_with_its_decision(sweep: Sweep) -> None:
    done = sweep.run(tasks("a", "b"), [CPU])
    assert [swept.task.target for swept in done] == ["a", "b"]
    assert done[0].reason == "Run a: 2 times eager's speed"
    assert done[0].study == {"decision": {"reason": done[0].reason}}
    assert "b on cpu: it is tuned" in sweep.said
    assert f"b on cpu: {done[1].reason}" in sweep.said


def test_one_slot_takes_one_study_at_a_time_and_each_has_its_own_device(sweep: Sweep) -> None:
    sweep.run([*tasks("a", "b", "c", device="cuda"), *tasks("d")], [*GPUS, CPU])
    seen: dict[str, list[tuple[float, float]]] = {}
    for target in "abcd":
        first, last = sweep.log(target).splitlines()
        _, begun, gpu, _ = first.split(" ", 3)
        seen.setdefault(gpu, []).append((float(begun), float(last.split()[1])))
    assert len(seen["None"]) == 1
    assert sorted(map(len, (seen["0"], seen["1"]))) == [1, 2]
    for spans in seen.values():
        ordered = sorted(spans)
        assert all(end <= begun for (_, end), (begun, _) in itertools.pairwise(ordered))


def test_a_study_whose_process_is_killed_is_begun_again_and_that_is_bounded(sweep: Sweep) -> None:
    once, always, after = sweep.run(tasks("dies_once", "dies", "a"), [CPU])
    assert once.exit_code == 0
    assert sweep.log("dies_once").count("begins") == 2
    assert always.exit_code == -signal.SIGKILL
    assert sweep.log("dies").count("begins") == 1 + RETRIES
    assert after.exit_code == 0
    assert "dies on cpu: its process was killed by SIGKILL" in sweep.said


def test_a_signal_without_a_name_ends_one_study_and_not_the_sweep(sweep: Sweep) -> None:
    ended, after = sweep.run(tasks("unnamed", "a"), [CPU])
    assert ended.exit_code == -(signal.SIGRTMIN + 1)
    assert f"unnamed on cpu: its process was killed by signal {signal.SIGRTMIN + 1}" in sweep.said
    assert after.exit_code == 0


def test_a_study_that_fails_ends_alone_with_its_error(sweep: Sweep) -> None:
    failed, good = sweep.run(tasks("broken", "a"), [CPU])
    assert (failed.exit_code, failed.reason) == (3, "torchwise: the model itself raised:\nno weights")
    assert failed.study is None
    assert good.exit_code == 0


def test_a_study_that_ends_without_an_error_of_its_own_is_described_by_its_last_line(sweep: Sweep) -> None:
    (failed,) = sweep.run(tasks("breaks_off"), [CPU])
    assert (failed.exit_code, failed.reason) == (1, "torchwise: no memory")


@pytest.mark.parametrize("target", ["long", "deaf"])
def test_ctrl_c_interrupts_every_study_and_begins_none(
    sweep: Sweep, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 1.0)

    def interrupt() -> None:
        while not sweep.log(target):
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)  # as a terminal does: to the process, of which the main thread takes it

    threading.Thread(target=interrupt).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep.run(tasks(target, "a"), [CPU])
    assert time.monotonic() - start < 30
    assert ("kept" in sweep.log(target)) is (target == "long")
    assert not sweep.log("a")


def test_studies_are_interrupted_when_the_sweep_is_killed(tmp_path: Path) -> None:
    """The command that `torchwise sweep` begins its processes with.

    They must not go on when nobody is there to hear.
    """
    child = textwrap.dedent("""
        import os, pathlib, sys, time
        from torchwise.study.cluster.sweep import follow
        try:
            follow(os.getppid())
            print("begun", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pathlib.Path(sys.argv[1]).write_text("interrupted")
    """)
    told = tmp_path / "told"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, {str(told)!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
        deadline = time.monotonic() + 20
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert told.exists()


def manifest(folder: Path, text: str) -> Path:
    file = folder / "sweep.toml"
    file.write_text(text)
    return file


def test_lists_multiply_and_a_study_takes_from_the_head_what_it_does_not_give(tmp_path: Path) -> None:
    text = """
        effort = "quick"
        sizes = ["small", "medium"]
        [[studies]]
        targets = ["zoo:tutorial.fusion_demo", "zoo:ivhl.mera_layer@large"]
        [[studies]]
        targets = ["app.models:ranker"]
        devices = ["cpu", "cuda"]
        modes = ["training"]
        effort = "thorough"
        calls = 1000
    """
    found = read_manifest(manifest(tmp_path, text)).with_device("cuda").tasks
    assert [(task.target, task.device, task.mode, task.effort, task.calls) for task in found] == [
        ("zoo:tutorial.fusion_demo@small", "cuda", "inference", "quick", DEFAULT_CALLS),
        ("zoo:tutorial.fusion_demo@medium", "cuda", "inference", "quick", DEFAULT_CALLS),
        ("zoo:ivhl.mera_layer@large", "cuda", "inference", "quick", DEFAULT_CALLS),
        ("app.models:ranker", "cpu", "training", "thorough", 1000),
        ("app.models:ranker", "cuda", "training", "thorough", 1000),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("targets = ", r"sweep\.toml: it is no TOML: Invalid value \(at end of document"),
        ("effort = 'quick'", "has no targets"),
        (
            "targets = ['zoo:a.b']\ndevices = []",
            r"\$\.studies\[0\]\.devices is \[\], but must be a list of length >= 1",
        ),
        ("targets = ['zoo:a.b']\neffrot = 'quick'", "unknown field 'effrot'; did you mean effort"),
        ("targets = ['zoo:a.b']\nbudget = nan", "it has an invalid number: nan is not finite"),
        ("targets = ['zoo:a.b']\ncolour = 1", r"\$\.studies\[0\] has an unknown field 'colour'"),
        ("targets = 'zoo:a.b'", r"\$\.studies\[0\]\.targets is 'zoo:a.b', but must be a list"),
        ("targets = ['zoo:a.b']\nstudies = 1", "studies is 1, but must be tables"),
        ("targets = ['zoo:a.b']\n[[studies]]\ntargets = []", "has no targets"),
        (
            "[[studies]]\ntargets = ['zoo:a.b']\ncalls = 'many'",
            r"\$\.studies\[0\]\.calls is 'many', but must be a number",
        ),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_manifest(manifest(tmp_path, text))
    with pytest.raises(InputError, match="cannot be read"):
        read_manifest(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("calls = 0", "calls is 0, but must be"),
        ("effort = 'much'", "effort is 'much'"),
        ("allow = 'all'", "all"),
        ("devices = ['tpu']", "device is 'tpu'"),
        ("compile_timeout = 0", "compile_timeout is 0.0, but must be a number of seconds above 0"),
        ("iterations = 3", "iterations is 3, but must be a whole number from 5 to 400"),
        ("workers = 0", "workers is 0, but must be a whole number of at least 1"),
        ("plan = ['{}']", "plan"),
    ],
)
def test_what_tune_would_refuse_is_refused_before_anything_runs(tmp_path: Path, given: str, said: str) -> None:
    file = manifest(tmp_path, f"targets = ['zoo:tutorial.fusion_demo']\n{given}\n")
    with pytest.raises(InputError, match=rf"sweep\.toml: \$\.studies\[0\]: .*{said}"):
        read_manifest(file)


def test_a_task_is_the_words_of_tune_and_these_are_understood() -> None:
    task = Task("-odd:name", "cpu", calls=7, memory_limit=1.5, budget=3.0, plan=(Plan(threads=1).to_json(),))
    task = replace(task, compile_timeout=60.0, iterations=50, workers=2)
    words = task.arguments()
    assert words[0] == "tune"
    assert {"--device=cpu", "--calls=7", "--memory-limit=1.5", "--budget=3.0"} < set(words)
    assert {"--compile-timeout=60.0", "--iterations=50", "--workers=2"} < set(words)
    said = CliRunner().invoke(app, [*words[:-1], "nothing"])
    assert "names no factory" in str(said.exception)
    request = replace(task, target="zoo:tutorial.fusion_demo").request()
    assert request.make_limits(1.0).compile_s == 60.0
    assert request.make_job("try").effort.rounds == 50
    assert request.workers == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launcher", "slurm"], "launcher is 'slurm', but must be one of process, ray"),
        (["--address", "auto"], "only --launcher ray takes an address"),
        (["--parallel", "0"], "parallel is 0, but must be at least 1"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    file = manifest(tmp_path, "targets = ['zoo:tutorial.fusion_demo']\ndevices = ['cpu']\n")
    done = CliRunner().invoke(app, ["sweep", str(file), "--device", "cpu", *words])
    assert said in str(done.exception)


@pytest.mark.parametrize("command", ["tune", "sweep"])
def test_plug_ins_of_this_machine_alone_are_not_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    file = manifest(tmp_path, "targets = ['zoo:tutorial.fusion_demo']\ndevices = ['cpu']\n")
    monkeypatch.setenv("TORCHWISE_PLUGINS", "kernels.py")
    subject = str(file) if command == "sweep" else "zoo:tutorial.fusion_demo"
    done = CliRunner().invoke(app, [command, subject, "--device", "cpu", "--launcher", "ray"])
    assert "TORCHWISE_PLUGINS is 'kernels.py', but names files of this machine" in str(done.exception)
    assert "an entry point of the group torchwise.choices" in str(done.exception)


def test_a_device_that_no_slot_has_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="needs the device 'cuda', but only cpu is available"):
        choice.check_fit(tasks("a", device="cuda"), [CPU])


@pytest.mark.parametrize(
    ("named", "found", "expected"),
    [(None, ["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"]), ("1, 3", ["GPU-b"], ["1", "3"]), ("", [], [None])],
)
def test_this_machine_has_a_slot_for_each_gpu_and_the_processor_shares_the_first(
    monkeypatch: pytest.MonkeyPatch, named: str | None, found: list[str], expected: list[str | None]
) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(choice.environment, "torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr(choice.environment, "query_gpu", lambda fields: [[uuid] for uuid in found])
    slots = choice.slots("process", None, None)
    assert [slot.variables.get("CUDA_VISIBLE_DEVICES") for slot in slots] == expected
    assert ["cpu" in slot.devices for slot in slots] == [True, *[False] * (len(slots) - 1)]
    assert len(choice.slots("process", None, 1)) == 1
    assert {slot.options for slot in slots} == {("--workers=1",) if len(slots) > 1 else ()}, "they share the cores"
    assert choice.slots("process", None, 1)[0].options == ()


def test_what_a_slot_adds_counts_over_what_the_task_asks_for() -> None:
    words = module._add_options(Task("-odd:name", "cuda", workers=4), "--json", "file", "--workers=1")
    assert words[0] == "tune"
    assert words[-2:] == ["--", "-odd:name"]
    assert [word for word in words if word.startswith("--workers")] == ["--workers=4", "--workers=1"]


@pytest.mark.parametrize(("targets", "code"), [(["a", "b"], 0), (["a", "broken"], 3), (["dies", "a"], 1)])
def test_the_command_shows_and_writes_every_study_and_its_exit_code_says_the_worst(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, targets: list[str], code: int
) -> None:
    asked = read_manifest(manifest(sweep.folder, "targets = ['zoo:tutorial.fusion_demo']\ndevices = ['cpu']\n")).tasks
    monkeypatch.setattr(
        cluster, "read_manifest", lambda file: Manifest(tuple(replace(asked[0], target=t) for t in targets))
    )
    monkeypatch.setattr(Task, "request", lambda task: None)
    monkeypatch.setattr(command, "_command", lambda: [sys.executable, "-S", str(sweep.folder / "tune.py")])
    file, store = sweep.folder / "sweep.json", f"sqlite:///{sweep.folder}/none.db"
    done = CliRunner().invoke(app, ["sweep", "sweep.toml", "--device", "cpu", "--store", store, "--json", str(file)])
    assert done.exit_code == code, done.output
    found = json.loads(file.read_text())
    assert found["schema"] == "torchwise.sweep/1"
    assert [study["task"]["target"] for study in found["studies"]] == targets
    assert [f"{target} on cpu: " in done.stdout for target in targets] == [True, True]
    assert "Run a: 2 times eager's speed" in done.stdout
    assert f"store {store}" in sweep.log("a"), "the store goes by the environment, where no list of processes shows it"


def test_every_option_of_a_study_reaches_its_request() -> None:
    plan = Plan(threads=1)
    numbers: dict[str, Any] = {"calls": 7, "restarts": 3, "seed": 11, "memory_limit": 1.5, "budget": 3.0}
    numbers["workers"] = 2
    task = Task(
        "m:f", "cpu", "training", allow="lower-precision", effort="quick", plan=(plan.to_json(),), cold=True, **numbers
    )
    request = task.request(fresh=True)
    spec = WorkloadSpec("m:f", "cpu", "training", "latency", 7, 3, 11, 3 * 2**29)
    expected = Request(spec, Numerics.LOWER_PRECISION, "quick", 3.0, (plan,), fresh=True, cold=True, workers=2)
    assert request == expected
    assert (
        msgspec.structs.replace(task, objective="throughput", cold=False).request().workload.objective == "throughput"
    )
