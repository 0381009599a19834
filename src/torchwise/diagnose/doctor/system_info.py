"""The facts about this machine and its software, and the findings that checks make of them."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from torchwise import environment
from torchwise._torch import native
from torchwise._torch.native.library import Library
from torchwise.diagnose.doctor.probe import Compiler, Probe, run_probe, try_compiler
from torchwise.environment import cpu_quota, read_text

GPU_FIELDS = ("name", "driver_version", "compute_cap", "memory.used", "memory.total", "utilization.gpu", "uuid")
PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")
MIB = 2**20
GIB = 2**30


class Status(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """Plans work, but are slower or noisier than possible, or have fewer options."""
    BAD = "bad"
    """Compiled plans cannot work, or measurements are useless."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: the subject of a check, the observation, and advice, or "" if none is needed."""

    topic: str
    status: Status
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """Make a finding that needs no action."""
    return Finding(topic, Status.OK, found)


def warn(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that reduces speed, precision of timings, or the choice of plans."""
    return Finding(topic, Status.WARN, found, advice)


def bad(topic: str, found: str, advice: str) -> Finding:
    """Make a finding that needs a fix."""
    return Finding(topic, Status.BAD, found, advice)


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """The input of all checks. The defaults describe a healthy machine with two CPUs and no GPU.

    Attributes:
        headers: the expected path of Python.h, and whether the file exists.
        torch: version with its build tag, or "absent".
        cuda_build: CUDA version of torch's build, or None for a CPU build.
        driver: whether an NVIDIA driver is loaded, with or without visible GPUs.
        gpu: `GPU_FIELDS` of the first visible GPU, or None.
        gpu_processes: `PROCESS_FIELDS` of each process on that GPU.
        cpus: CPUs this process may be scheduled on.
        quota: CPU limit of the container, in CPUs, or None if unlimited.
        load: number of processes that run or wait for a CPU, averaged over a minute, or None if unknown.
        governor: the kernel's CPU frequency policy, or None if unknown.
        cache: the folder of Inductor's compile cache.
        shared: shared memory, or None if the system has no such folder.
        call_checks: why Python checks the calls of served plans, or None if compiled code does.
        call_checks_intended: whether that is the user's will, or in the nature of this Python.
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
    cache: Folder = field(default_factory=lambda: Folder("/tmp/torchinductor_user", 10 * GIB))
    temporary: Folder = field(default_factory=lambda: Folder("/tmp", 10 * GIB))
    shared: Folder | None = None
    call_checks: str | None = None
    call_checks_intended: bool = False


def gather() -> SystemInfo:
    """Inspect this machine. The load is read before the compilers run, and the GPU before the probe uses it."""
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
        cache=check_folder(find_inductor_cache(os.environ)),
        temporary=check_folder(find_temporary()),
        shared=check_folder("/dev/shm") if platform.system() == "Linux" else None,
        compiler=try_compiler(),
        call_checks=native.ensure_compiled(lambda _: None),
        call_checks_intended=native.is_off() or Library().find_obstacle() is not None,
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


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that compilation writes to, its free bytes, and why it is not writable, or "". It may not exist yet."""

    path: str
    free: int
    error: str = ""


def check_folder(path: str) -> Folder:
    """Test by a temporary file whether `path`, or its first existing parent, is writable."""
    existing = Path(path).absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Folder(path, 0, error.strerror or str(error))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Folder(path, free)
    except OSError as error:
        return Folder(path, free, error.strerror or str(error))


def find_inductor_cache(environ: Mapping[str, str]) -> str:
    """Return the folder of Inductor's compile cache, as torch itself finds it."""
    if folder := environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return os.path.abspath(folder)
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return os.path.join(find_temporary(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))


def find_temporary() -> str:
    """Return the folder for temporary files, even if none is writable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR") or "/tmp"
