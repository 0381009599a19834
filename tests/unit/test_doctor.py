"""Each check against a healthy machine and against a sick one, and the examination itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from local_server import wait_for_end
from torchwise.cli.doctor import doctor
from torchwise.diagnose import doctor as package
from torchwise.diagnose.doctor import Finding, Status, SystemInfo, judge, probe, system_info
from torchwise.diagnose.doctor.probe import Compiler, Step, ThreadCost, time_threads
from torchwise.diagnose.doctor.system_info import GIB, MIB, Folder
from torchwise.errors import InputError
from torchwise.records import codec


def threads_cost(two_s: float, **cores: float) -> Step:
    """Return the probe's answer for a small model on two threads, and on one, which takes 105 µs a call."""
    return Step(json.dumps({"cores": {"cpus": 2, "threads": 2, **cores}, "seconds": {"2": two_s, "1": 1.05e-4}}))


GOOD_STEPS = {
    "import": Step("2.13.0+cpu"),
    "threads": Step("2"),
    "cores": threads_cost(9.8e-5, others=0.02, waited=0.0),
    "inductor_cpu": Step("compiled and agrees", seconds=6.0),
}
GPU_STEPS = {
    **GOOD_STEPS,
    "cuda": Step("NVIDIA H200"),
    "triton": Step("3.7.0"),
    "inductor_cuda": Step("compiled and agrees", seconds=9.0),
}
GPU = {
    "name": "NVIDIA H200",
    "driver_version": "580.1",
    "compute_cap": "9.0",
    "memory.used": "4",
    "memory.total": "143771",
    "utilization.gpu": "0",
    "uuid": "GPU-1",
}
GOOD = SystemInfo(probe=GOOD_STEPS, shared=Folder("/dev/shm", GIB), governor="performance")
GOOD_GPU = replace(GOOD, torch="2.13.0+cu130", cuda_build="13.0", driver=True, gpu=GPU, probe=GPU_STEPS)
PROCESS = {"gpu_uuid": "GPU-1", "pid": "77", "process_name": "train.py", "used_gpu_memory": "9000"}


def fail_step(step: str, detail: str = "it is broken") -> dict[str, Any]:
    return {"probe": {**GPU_STEPS, step: Step(detail, failed=True)}}


def find(findings: list[Finding], topic: str) -> Finding:
    (found,) = [finding for finding in findings if finding.topic == topic]
    return found


@pytest.mark.parametrize("healthy", [GOOD, GOOD_GPU], ids=["cpu", "gpu"])
def test_a_healthy_machine_needs_nothing(healthy: SystemInfo) -> None:
    findings = judge(healthy)
    assert [finding for finding in findings if finding.status is not Status.OK] == []
    topics = [finding.topic for finding in findings]
    assert {"Python", "torch", "C++ compiler", "GPU", "CPU threads", "compile cache"} <= set(topics)
    assert ("Triton" in topics) is (healthy is GOOD_GPU)


def test_free_cores_are_told_with_what_threads_cost_and_nothing_is_told_where_that_was_not_timed() -> None:
    found = find(judge(GOOD), "CPU cores").found
    assert found == "All cores are free: a small model with 2 threads takes 98.0 µs a call, with 1 thread 105 µs"
    for steps in ({"threads": Step("2")}, {"threads": Step("2"), "cores": Step("RuntimeError: no", failed=True)}):
        assert "CPU cores" not in [finding.topic for finding in judge(replace(GOOD, probe=steps))]


def test_the_threads_of_a_small_model_are_timed_and_left_as_they_were() -> None:
    import torch

    before = torch.get_num_threads()
    cost = codec.from_json(time_threads(), ThreadCost)
    assert torch.get_num_threads() == before
    assert set(cost.seconds) == {before, 1}
    assert all(seconds > 0 for seconds in cost.seconds.values())
    assert cost.cores.threads == before


CPU_CASES = [
    ({"python": (3, 10, 4)}, "Python", "bad", "3.10.4", "3.11 or later"),
    ({"python": (3, 15, 0)}, "Python", "warn", "newer than all", "3.11 to 3.14"),
    ({"headers": ("/x/Python.h", False)}, "Python headers", "bad", "/x/Python.h is missing", "python3-dev"),
    ({"torch": "absent"}, "torch", "bad", "not installed", "pip install"),
    ({"torch": "2.10.1"}, "torch", "bad", "2.10.1 is too old", "upgrade"),
    ({"torch": "2.16.0"}, "torch", "warn", "newer than all", "update Torchwise"),
    (fail_step("import", "OSError: libgomp"), "torch", "bad", "importing it fails: OSError: libgomp", "reinstall"),
    (fail_step("inductor_cpu"), "Inductor on the CPU", "bad", "fails: it is broken", "C++ compiler"),
    ({"gpu": GPU, "driver": True}, "torch build", "warn", "CPU only, but there is a GPU (NVIDIA H200)", "CUDA build"),
    ({"compiler": Compiler("g++", "g++ does not start: No such file")}, "C++ compiler", "bad", "not start", "apt"),
    (
        {"compiler": Compiler("icc", "icc does not start"), "environ": {"CXX": "icc"}},
        "C++ compiler",
        "bad",
        "CXX=icc",
        "unset CXX",
    ),
    (
        {"compiler": Compiler("g++", "the built library does not load: noexec")},
        "C++ compiler",
        "bad",
        "noexec",
        "TMPDIR",
    ),
    ({"compiler": Compiler("g++", "", "omp.h: not found")}, "OpenMP", "bad", "omp.h: not found", "libgomp"),
    ({"environ": {"OMP_NUM_THREADS": "many"}}, "CPU threads", "warn", "'many'", "OMP_NUM_THREADS=2"),
    ({"environ": {"OMP_NUM_THREADS": "0"}}, "CPU threads", "warn", "'0', but must be", "OMP_NUM_THREADS=2"),
    ({"environ": {"OMP_NUM_THREADS": "8"}}, "CPU threads", "warn", "8 threads compete for 2 CPUs", "OMP_NUM_THREADS=2"),
    ({"environ": {"OMP_NUM_THREADS": "1"}}, "CPU threads", "warn", "uses 1 of 2", "unset"),
    (
        {"cpus": 64, "quota": 1.5, "probe": {"threads": Step("64")}},
        "CPU threads",
        "warn",
        "may use 1.5 of 64 CPUs, but torch starts 64",
        "OMP_NUM_THREADS=2",
    ),
    (
        {"probe": {**GOOD_STEPS, "cores": threads_cost(0.088, others=1.0, waited=0.4)}},
        "CPU cores",
        "warn",
        "Other programs hold 1.0 of 2 cores: a small model with 2 threads takes 88.0 ms a call, with 1 thread 105 µs",
        "OMP_NUM_THREADS=1 for models with short calls",
    ),
    (
        {"probe": {**GOOD_STEPS, "cores": threads_cost(0.012, quota=0.5, throttled=0.6)}},
        "CPU cores",
        "warn",
        "The container may use 0.5 of 2 cores, and was stopped for 60% of the time: a small model with 2 threads takes",
        "`threads`",
    ),
    ({"load": 1.5}, "CPU load", "warn", "1.5 processes", "stop other programs"),
    ({"governor": "powersave"}, "CPU frequency", "warn", "powersave", "performance"),
    ({"cache": Folder("/c", 9 * GIB, "Read-only file system")}, "compile cache", "bad", "Read-only", "CACHE_DIR"),
    ({"cache": Folder("/c", GIB)}, "compile cache", "warn", "1.0 GiB free", "larger disk"),
    ({"cache": Folder("/c", 9 * MIB)}, "compile cache", "bad", "9 MiB free", "larger disk"),
    ({"temporary": Folder("/tmp", 9 * MIB)}, "temporary files", "bad", "9 MiB free", "TMPDIR"),
    ({"temporary": Folder("/tmp", 0, "denied")}, "temporary files", "bad", "denied", "TMPDIR"),
    ({"shared": Folder("/dev/shm", 64 * MIB)}, "shared memory", "warn", "64 MiB free", "--shm-size"),
    ({"shared": Folder("/dev/shm", 0, "denied")}, "shared memory", "warn", "denied", "--shm-size"),
    ({"driver": True}, "GPU", "bad", "nvidia-smi shows no GPU", "run nvidia-smi"),
    (
        {"driver": True, "environ": {"CUDA_VISIBLE_DEVICES": "-1"}},
        "GPU",
        "warn",
        "hidden by CUDA_VISIBLE_DEVICES='-1'",
        "unset",
    ),
    ({"torch": "2.11.0+cpu"}, "known problem", "warn", "174891", "2.13"),
]

GPU_CASES = [
    (fail_step("cuda", "RuntimeError: driver too old"), "CUDA", "bad", "driver too old", "update the driver"),
    (fail_step("triton", "ModuleNotFoundError"), "Triton", "bad", "ModuleNotFoundError", "reinstall"),
    (fail_step("inductor_cuda"), "Inductor on the GPU", "bad", "it is broken", "C compiler"),
    ({"gpu": {**GPU, "compute_cap": "6.1"}}, "GPU", "bad", "6.1, but Triton needs 7.0", "newer GPU"),
    ({"gpu_processes": (PROCESS,)}, "GPU use", "warn", "1 other process: train.py (77)", "CUDA_VISIBLE_DEVICES"),
    ({"gpu": {**GPU, "memory.used": "9000"}}, "GPU use", "warn", "9000 MiB in use by processes not", "unreliable"),
    ({"gpu": {**GPU, "utilization.gpu": "55"}}, "GPU use", "warn", "55 % busy", "unreliable"),
]


@pytest.mark.parametrize(
    ("healthy", "sickness", "topic", "status", "found", "advice"),
    [(GOOD, *case) for case in CPU_CASES] + [(GOOD_GPU, *case) for case in GPU_CASES],
)
def test_each_sickness_is_found_and_has_advice(
    healthy: SystemInfo, sickness: dict[str, Any], topic: str, status: str, found: str, advice: str
) -> None:
    findings = judge(replace(healthy, **sickness))
    finding = next(f for f in findings if f.topic == topic)
    assert (finding.status.value, found in finding.found, advice in finding.advice) == (status, True, True), finding
    assert all(f.advice for f in findings if f.status is not Status.OK)


@pytest.mark.parametrize(
    ("name", "value", "status", "effect"),
    [
        ("TORCH_COMPILE_DISABLE", "1", "bad", "does nothing"),
        ("TORCHDYNAMO_DISABLE", "1", "bad", "does nothing"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1", "warn", "compiled code is not cached"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0", "warn", "compiled code is not cached"),
        ("TORCH_LOGS", "recompiles", "warn", "logging slows"),
        ("CUDA_LAUNCH_BLOCKING", "1", "bad", "GPU times are useless"),
        ("TORCH_COMPILE_DEBUG", "1", "warn", "to disk"),
        ("NVIDIA_TF32_OVERRIDE", "1", "warn", "forces TF32 on"),
        ("NVIDIA_TF32_OVERRIDE", "0", "warn", "forces TF32 off"),
        ("TRITON_INTERPRET", "1", "bad", "interpreted"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1", "warn", "for every plan"),
        ("ATEN_CPU_CAPABILITY", "default", "warn", "vector instructions"),
    ],
)
def test_variables_that_matter_are_named(name: str, value: str, status: str, effect: str) -> None:
    finding = find(judge(replace(GOOD, environ={name: value})), "environment variable")
    assert finding.status.value == status
    assert finding.found.startswith(f"{name}={value}: ")
    assert effect in finding.found
    assert f"unset {name}" in finding.advice


@pytest.mark.parametrize(
    "environ",
    [{"TORCH_COMPILE_DISABLE": "0"}, {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}, {"TORCH_LOGS": ""}, {"HOME": "/root"}],
)
def test_variables_that_do_not_matter_are_not(environ: dict[str, str]) -> None:
    assert find(judge(replace(GOOD, environ=environ)), "environment variables").status is Status.OK


def test_aoti_on_the_gpu_it_crashed_on_is_a_known_problem() -> None:
    said = [f.found for f in judge(replace(GOOD_GPU, torch="2.11.0+cu130")) if f.topic == "known problem"]
    assert any("aoti_load_package" in found for found in said)
    other = replace(GOOD_GPU, torch="2.11.0+cu130", gpu={**GPU, "name": "NVIDIA A100"})
    assert not any("aoti_load_package" in f.found for f in judge(other))


def test_the_lstm_problem_is_said_without_alarm() -> None:
    finding = find(judge(GOOD), "known problem")
    assert "allow_rnn" in finding.found
    assert finding.status is Status.OK
    assert find(judge(replace(GOOD, torch="2.15.0")), "known problems").status is Status.OK


def test_torch_absent_says_only_that() -> None:
    topics = [f.topic for f in judge(replace(GOOD, torch="absent", probe={"import": Step("no module", failed=True)}))]
    assert "torch" in topics
    assert "torch build" not in topics
    assert "known problems" not in topics


def test_a_check_that_raises_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(_: SystemInfo) -> list[Finding]:
        raise ZeroDivisionError("odd machine")

    monkeypatch.setattr(package, "CHECKS", (raise_error, *package.CHECKS))
    findings = judge(GOOD)
    assert "ZeroDivisionError: odd machine" in findings[0].found
    assert len(findings) == 1 + len(judge(GOOD)) - 1


# The following tests examine this very machine.


def test_the_compiler_here_is_tried_for_real(tmp_path: Path) -> None:
    tried = probe.try_compiler()
    assert (tried.error, tried.openmp_error) == ("", "")
    missing = probe.try_compiler({"CXX": "no-such-compiler"})
    assert missing.command == "no-such-compiler"
    assert "does not start" in missing.error
    without_openmp = tmp_path / "cxx"
    refuse = 'for a; do [ "$a" = -fopenmp ] && echo "omp.h: not found" >&2 && exit 1; done'
    without_openmp.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    without_openmp.chmod(0o755)
    tried = probe.try_compiler({"CXX": str(without_openmp)})
    assert tried.error == ""
    assert tried.openmp_error == "omp.h: not found"


def test_a_compiler_whose_output_does_not_load_is_found_out(tmp_path: Path) -> None:
    fake = tmp_path / "cxx"
    fake.write_text('#!/bin/sh\nfor last; do :; done\necho "no library" > "$last"\n')
    fake.chmod(0o755)
    assert probe.try_compiler({"CXX": str(fake)}).error.startswith("the built library does not load")


def test_a_child_that_hangs_is_ended_with_its_own_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    ended = probe.run_command(["sh", "-c", f"sleep 600 & echo $! >{child}; echo started; sleep 600"], 2.0)
    assert ended == probe.Ended(None, "started\n", "it exceeded 2 s")
    wait_for_end(int(child.read_text()))


def test_a_child_that_crashes_names_its_signal() -> None:
    assert probe.run_command(["sh", "-c", "kill -SEGV $$"], 10).error == "it was killed by SIGSEGV"
    assert (
        probe.run_command(["sh", "-c", "echo 'a.c: error: bad' >&2; echo done >&2; exit 3"], 10).error
        == "a.c: error: bad"
    )
    assert probe.run_command(["sh", "-c", "exit 3"], 10).error == "it exited with status 3"
    assert "does not start" in probe.run_command(["/nowhere/at/all"], 10).error


def test_a_probe_that_crashes_says_where() -> None:
    lines = [
        {"step": "import"},
        {"step": "import", "detail": "2.13.0", "failed": False, "seconds": 1.0},
        {"step": "cuda"},
    ]
    out = "noise\n" + "".join(f"{probe.PREFIX}{json.dumps(line)}\n" for line in lines)
    steps = probe.read(probe.Ended(-11, out, "it was killed by SIGSEGV"))
    assert steps == {"import": Step("2.13.0", seconds=1.0), "cuda": Step("it was killed by SIGSEGV", failed=True)}
    assert probe.read(probe.Ended(1, "", "No module named torchwise"))["import"].failed


def test_the_probe_survives_a_broken_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    steps = probe.run_probe()
    assert steps == {"import": replace(steps["import"], failed=True)}
    assert steps["import"].detail == "ImportError: libtorch.so: cannot open"


@pytest.mark.slow
@pytest.mark.nightly
def test_the_probe_compiles_even_where_compilation_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    steps = probe.run_probe()
    assert not steps["import"].failed
    assert steps["inductor_cpu"].detail == "compiled and agrees"
    assert int(steps["threads"].detail) >= 1


def test_a_library_that_cannot_be_compiled_is_a_warning_unless_that_is_intended() -> None:
    def judge_checks(**facts: Any) -> list[tuple[str, str]]:
        found = judge(replace(GOOD, **facts))
        return [(one.status.value, one.found) for one in found if one.topic == "checks of calls"]

    why = "TORCHWISE_NATIVE is 0"
    assert judge_checks() == [("ok", "compiled")]
    assert judge_checks(call_checks=why, call_checks_intended=True) == [("ok", f"by Python, as {why}")]
    assert judge_checks(call_checks="g++ fails") == [("warn", "by Python, as g++ fails")]
    assert judge_checks(compiler=Compiler("g++", "it is missing")) == [], "the compiler has a finding of its own"


def test_gathering_needs_no_torch_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_info, "run_probe", lambda: GOOD_STEPS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = system_info.gather()
    assert seen.python == sys.version_info[:3]
    assert seen.gpu is None
    assert seen.cpus >= 1
    code = "import sys, torchwise.diagnose.doctor as d, torchwise.diagnose.doctor.system_info as f; "
    code += "f.run_probe = dict; d.diagnose()"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)


def test_gpu_processes_are_those_on_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        "gpu": [list(GPU.values())],
        "compute-apps": [["GPU-2", "5", "other", "1"], list(PROCESS.values())],
    }
    monkeypatch.setattr(system_info.environment, "query_gpu", lambda fields, table="gpu": tables[table])
    monkeypatch.setattr(system_info.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert system_info._gpu() == GPU
    assert system_info._gpu_processes(GPU) == (PROCESS,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert system_info._gpu() is None


def test_folders_are_tried_by_writing(tmp_path: Path) -> None:
    target = tmp_path / "not" / "yet" / "made"
    assert system_info.check_folder(str(target)).error == ""
    assert system_info.check_folder(str(target)).free > 0
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    assert system_info.check_folder(str(tmp_path / "file")).error != ""
    assert system_info.check_folder("/proc/self/no").error != ""


def test_the_cache_folder_is_the_one_torch_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import cache_dir_utils

    assert system_info.find_inductor_cache({}) == cache_dir_utils.default_cache_dir()
    assert system_info.find_inductor_cache({"TORCHINDUCTOR_CACHE_DIR": "here"}) == os.path.abspath("here")


def run_command(monkeypatch: pytest.MonkeyPatch, sickness: dict[str, Any], *arguments: str) -> Any:
    monkeypatch.setattr(package, "diagnose", lambda: judge(replace(GOOD, **sickness)))
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_the_command_succeeds_unless_something_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    for sickness, code, closing in (
        ({}, 0, "Ready."),
        ({"load": 9.0}, 0, "Ready, with 1 warning."),
        ({"torch": "absent"}, 1, "1 must be fixed, 0 warnings."),
    ):
        result = run_command(monkeypatch, sickness)
        assert result.exit_code == code
        assert closing in result.output
    assert "pip install 'torch>=2.11'" in result.output


def test_the_command_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    assert run_command(monkeypatch, {"load": 9.0}, "--json", str(path)).exit_code == 0
    data = json.loads(path.read_text())
    assert data["schema"] == "torchwise.doctor/1"
    load = next(f for f in data["findings"] if f["topic"] == "CPU load")
    assert load["status"] == "warn"
    assert set(load) == {"topic", "status", "found", "advice"}
    result = run_command(monkeypatch, {}, "--json", str(tmp_path / "no" / "such"))
    assert isinstance(result.exception, InputError)
    assert f"there is no folder {tmp_path / 'no'}" in str(result.exception)
    assert "Ready" not in result.output, "before anything is looked at"
