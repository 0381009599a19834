"""Collect facts about this machine and its software."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchwise import environment
from torchwise.cgroups import cpu_quota, read_text
from torchwise.doctor import disk
from torchwise.doctor.compiler import Compiler, try_compiler
from torchwise.doctor.disk import Folder
from torchwise.doctor.probe import Probe, run_probe

GPU_FIELDS = ("name", "driver_version", "compute_cap", "memory.used", "memory.total", "utilization.gpu", "uuid")
PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """The input of all checks.

    The defaults describe a healthy machine with two CPUs and no GPU.

    Attributes:
        python: the interpreter's version.
        headers: the expected path of Python.h, and whether the file exists.
        torch: version with its build tag, or "absent".
        cuda_build: CUDA version of torch's build, or None for a CPU build.
        compiler: the results of building programs.
        probe: the results of importing torch, and of compiling and running with it.
        driver: whether an NVIDIA driver is loaded, with or without visible GPUs.
        gpu: `GPU_FIELDS` of the first visible GPU, or None.
        gpu_processes: `PROCESS_FIELDS` of each process on that GPU.
        environ: the environment variables.
        cpus: CPUs this process may be scheduled on.
        host_cpus: CPUs of the whole machine.
        quota: CPU limit of the container, in CPUs, or None if unlimited.
        load: number of processes that run or wait for a CPU, averaged over a minute, or None if unknown.
        governor: the kernel's CPU frequency policy, or None if unknown.
        cache: the folder of Inductor's compile cache.
        temporary: the folder for temporary files.
        shared: shared memory, or None if the system has no such folder.
    """

    python: tuple[int, int, int] = (3, 11, 0)
    headers: tuple[str, bool] = ("/usr/include/python3.11/Python.h", True)
    torch: str = "2.13.0+cpu"
    cuda_build: str | None = None
    compiler: Compiler = field(default_factory=lambda: Compiler("g++"))
    probe: Probe = field(default_factory=dict)
    driver: bool = False
    gpu: Mapping[str, str] | None = None
    gpu_processes: tuple[Mapping[str, str], ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 2
    host_cpus: int = 2
    quota: float | None = None
    load: float | None = 0.0
    governor: str | None = None
    cache: Folder = field(default_factory=lambda: Folder("/tmp/torchinductor_user", 10 * disk.GIB))
    temporary: Folder = field(default_factory=lambda: Folder("/tmp", 10 * disk.GIB))
    shared: Folder | None = None


def gather() -> SystemInfo:
    """Inspect this machine.

    The load is read before the compilers run, and the GPU before the probe uses it.
    """
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    load, gpu = _load(), _gpu()
    return SystemInfo(
        python=sys.version_info[:3],
        headers=(str(headers), headers.is_file()),
        torch=environment.torch_version(),
        cuda_build=environment.torch_cuda_version(),
        driver=Path("/proc/driver/nvidia/version").is_file() or gpu is not None,
        gpu=gpu,
        gpu_processes=_gpu_processes(gpu),
        environ=dict(os.environ),
        cpus=environment.available_cpus(),
        host_cpus=os.cpu_count() or 1,
        quota=cpu_quota(),
        load=load,
        governor=read_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        cache=disk.check_folder(disk.inductor_cache(os.environ)),
        temporary=disk.check_folder(disk.temporary()),
        shared=disk.check_folder("/dev/shm") if platform.system() == "Linux" else None,
        compiler=try_compiler(),
        probe=run_probe(),
    )


def _gpu() -> dict[str, str] | None:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    if hidden or shutil.which("nvidia-smi") is None:
        return None
    rows = environment.query_gpu(",".join(GPU_FIELDS))
    return dict(zip(GPU_FIELDS, rows[0], strict=False)) if rows else None


def _gpu_processes(gpu: Mapping[str, str] | None) -> tuple[dict[str, str], ...]:
    if gpu is None:
        return ()
    rows = environment.query_gpu(",".join(PROCESS_FIELDS), table="compute-apps")
    processes = [dict(zip(PROCESS_FIELDS, row, strict=False)) for row in rows]
    return tuple(process for process in processes if process.get("gpu_uuid") == gpu.get("uuid"))


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
