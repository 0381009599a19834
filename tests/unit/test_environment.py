"""The fingerprint of a machine: its fields, facts that never enter, and how it is taken without torch or CUDA."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from sketches import HERE

from torchwise import environment
from torchwise.environment import Environment, detect, detect_gpu, query_gpu
from torchwise.records import codec
from torchwise.report.facts import machine

FACTORS = [field.name for field in fields(Environment) if field.name not in ("hostname", "compilers")]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the detected facts, before and after."""
    cached = (environment.detect_gpu, environment._torch_version_field, environment._cpu_name)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put an `nvidia-smi` on the path that prints the given text. Return the file in which it writes its arguments."""

    def install(output: str, code: int = 0) -> Path:
        called = tmp_path / "arguments"
        script = tmp_path / "nvidia-smi"
        (tmp_path / "output").write_text(output)
        script.write_text(f'#!/bin/sh\necho "$@" >> {called}\ncat {tmp_path}/output\nexit {code}\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return called

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_the_fingerprint_is_the_same_everywhere() -> None:
    # Written down, since stores are keyed by it: another value makes every stored decision stale.
    assert HERE.fingerprint == "613c3117b763"


@pytest.mark.parametrize("name", FACTORS)
def test_every_factor_changes_the_fingerprint(name: str) -> None:
    here = replace(HERE, cores_allowed=8.0)
    other = replace(here, **{name: 7 if name in ("cpus", "gpu_memory_mib", "cores_allowed") else "another"})
    assert other.fingerprint != here.fingerprint
    assert here.list_different_fields(other) == [name]
    assert len(here.differences(other)) == 1


def test_another_compiler_of_another_maker_begins_a_new_study() -> None:
    here, newer = (replace(HERE, compilers=f"openvino 2026.{minor}") for minor in (1, 2))
    assert len({HERE.fingerprint, here.fingerprint, newer.fingerprint}) == 3
    assert here.differences(newer) == []  # a plan of Inductor holds


def test_compilers_of_other_makers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"openvino": "2026.4.1", "onnxruntime": "1.32.0"}
    monkeypatch.setattr(environment, "package_version", installed.get)
    assert detect("cpu").compilers == "onnxruntime 1.32.0, openvino 2026.4.1"
    monkeypatch.setattr(environment, "package_version", {}.get)
    assert detect("cpu").compilers is None


def test_the_hostname_never_does() -> None:
    other = replace(HERE, hostname="another")
    assert other.fingerprint == HERE.fingerprint
    assert HERE.differences(other) == []


def test_differences_name_the_factor_and_both_values() -> None:
    there = replace(HERE, torch="2.11.0+cpu", gpu="NVIDIA H200")
    assert there.differences(HERE) == ["torch: 2.11.0+cpu there, 2.13.0+cpu here", "gpu: NVIDIA H200 there, None here"]


FREE, LIMITED = replace(HERE, cores_allowed=8.0), replace(HERE, cores_allowed=1.5)


def test_a_limit_on_its_cpus_makes_another_environment_and_is_named() -> None:
    assert LIMITED.differences(FREE) == ["CPU cores allowed: 1.5 there, 8 here"]
    assert FREE.differences(LIMITED) == ["CPU cores allowed: 8 there, 1.5 here"]
    assert LIMITED.limited_hardware == "8 × Example CPU @ 3.00 GHz (1.5 cores allowed), Linux x86_64"
    told = dict(machine(LIMITED))
    assert told["CPU"] == "Example CPU @ 3.00 GHz, 8 logical CPUs usable, limited to 1.5"
    assert FREE.limited_hardware == FREE.hardware == LIMITED.hardware == "8 × Example CPU @ 3.00 GHz, Linux x86_64"


def test_a_record_that_kept_no_limit_counts_everywhere_and_is_stored_where_it_was() -> None:
    stored = {name: value for name, value in codec.to_builtins(FREE).items() if name != "cores_allowed"}
    unknown = codec.from_builtins(stored, Environment)
    assert unknown == HERE
    assert [unknown.differences(other) + other.differences(unknown) for other in (FREE, LIMITED)] == [[], []]
    assert unknown.fingerprint == FREE.fingerprint


def test_other_cpus_are_named_once() -> None:
    assert FREE.differences(replace(HERE, cpus=2, cores_allowed=2.0)) == ["cpus: 8 there, 2 here"]


def test_both_sides_have_the_words_of_the_report_whatever_the_values_are_called() -> None:
    odd = replace(HERE, cpu="Made there, not here")
    words = HERE.describe_differences(odd, "before", "now")
    assert words == [f"cpu: {HERE.cpu} before, Made there, not here now"]


@pytest.mark.parametrize(("quota", "limit"), [(None, None), (0.5, 0.5), (1e3, None)])
def test_the_limit_of_this_process_is_its_quota_where_that_is_below_its_cpus(
    quota: float | None, limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cpu_quota", lambda: quota)
    assert detect("cpu").cpu_limit == limit
    assert detect("cpu").cores_allowed == (limit or len(os.sched_getaffinity(0)))


def test_this_machine_on_the_cpu() -> None:
    here = detect("cpu")
    assert here.device == "cpu"
    assert here.cpus == len(os.sched_getaffinity(0))
    assert here.cpu != ""
    assert here.torch.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert (here.gpu, here.driver, here.triton, here.cuda) == (None, None, None, None)
    assert detect("cpu") == here


def test_torch_is_read_with_its_build_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.12.1+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n")
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert environment.torch_version() == "2.12.1+cu130"
    assert environment.torch_cuda_version() == "13.0"


def test_a_cpu_build_has_no_cuda_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.12.1+cpu'\ncuda: Optional[str] = None\n")
    spec = importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert environment.torch_cuda_version() is None


def test_without_torch_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(environment, "package_version", lambda name: None)
    assert detect("cpu").torch == "absent"


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert environment.package_version("no-such-package-anywhere") is None
    assert environment.package_version("numpy") == importlib.metadata.version("numpy")


def test_a_gpu_is_described_by_its_driver(nvidia_smi: Callable[..., Path]) -> None:
    called = nvidia_smi("NVIDIA H200, 143771, 9.0, 580.82\nNVIDIA T4, 15360, 7.5, 580.82\n")
    here = detect("cuda")
    assert (here.gpu, here.gpu_memory_mib, here.gpu_capability, here.driver) == ("NVIDIA H200", 143771, "9.0", "580.82")
    assert "--query-gpu=name,memory.total,compute_cap,driver_version" in called.read_text()
    assert "--id" not in called.read_text()


def test_the_cpu_fingerprint_does_not_ask_for_a_gpu(nvidia_smi: Callable[..., Path]) -> None:
    called = nvidia_smi("NVIDIA H200, 143771, 9.0, 580.82\n")
    assert detect("cpu").gpu is None
    assert not called.exists()


def test_the_first_visible_gpu_is_meant(nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    called = nvidia_smi("NVIDIA T4, 15360, 7.5, 580.82\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert query_gpu("name") == [["NVIDIA T4", "15360", "7.5", "580.82"]]
    assert "--id=3" in called.read_text()


def test_processes_are_asked_for_on_the_visible_gpu(
    nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = nvidia_smi("77, train.py\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert query_gpu("pid,process_name", "compute-apps") == [["77", "train.py"]]
    assert called.read_text().strip() == "--query-compute-apps=pid,process_name --format=csv,noheader,nounits --id=3"


def test_hidden_gpus_are_none(nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    called = nvidia_smi("NVIDIA H200, 143771, 9.0, 580.82\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert detect_gpu() is None
    assert not called.exists()


def test_an_empty_list_of_gpus_hides_them_too(nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi("NVIDIA H200, 143771, 9.0, 580.82\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_gpu() is None


def test_a_gpu_that_shares_the_hosts_memory_has_no_size(nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi("NVIDIA GB10, [N/A], 12.1, 580.82\n")
    here = detect("cuda")
    assert (here.gpu, here.gpu_memory_mib) == ("NVIDIA GB10", None)


@pytest.mark.parametrize(
    ("visible", "build", "device"),
    [(None, "13.0", "cuda"), ("0", "13.0", "cuda"), ("", "13.0", "cpu"), ("-1", "13.0", "cpu"), (None, None, "cpu")],
)
def test_the_default_device_is_one_that_torch_can_use(
    nvidia_smi: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    build: str | None,
    device: str,
) -> None:
    nvidia_smi("NVIDIA H200, 143771, 9.0, 580.82\n")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(environment, "torch_cuda_version", lambda: build)
    assert environment.default_device() == device


def test_the_default_device_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(environment, "torch_cuda_version", lambda: "13.0")
    assert environment.default_device() == "cpu"


def test_a_driver_that_fails_is_none(nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi("NVIDIA-SMI has failed because it could not communicate with the driver\n", code=9)
    assert query_gpu("name") == []
    assert detect("cuda").gpu is None


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert detect_gpu() is None


def test_a_driver_that_hangs_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert query_gpu("name") == []
