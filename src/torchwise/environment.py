"""The machine and software of a measurement, their fingerprint, and the CPU time that control groups allow.

Only the standard library is needed, and no torch. Versions are read from package metadata and `torch/version.py`, and
the GPU from `nvidia-smi`. So it is fast, and creates no CUDA context.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from torchwise.errors import InputError
from torchwise.former_names import added_fields

COMPILERS = ("onnxruntime", "onnxruntime-gpu", "openvino", "torch-tensorrt")
"""Distributions of compilers of other makers that plans may use."""


@added_fields("compilers")
@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software that a measurement depends on.

    `fingerprint` covers every field except `hostname`, so that equal machines share decisions. It covers
    `cores_allowed` only if that is a limit, and `compilers` only if there are any, so that machines without them keep
    the fingerprint of earlier versions. So another version of such a compiler begins a new study, but makes only those
    decisions stale whose plans need it.
    Load, clocks and free memory are not part of it. They are judged per measurement instead.
    """

    device: str  # "cpu" or "cuda"
    hostname: str
    system: str  # operating system and architecture, such as "Linux x86_64"
    cpu: str
    cpus: int  # logical CPUs this process may use
    python: str
    torch: str
    triton: str | None = None
    cuda: str | None = None  # CUDA version torch was built with
    gpu: str | None = None
    gpu_memory_mib: int | None = None
    gpu_capability: str | None = None
    driver: str | None = None
    cores_allowed: float | None = (
        None  # `cpus`, or fewer by a container's quota, or None in records of earlier versions
    )
    compilers: str | None = None  # those of other makers, such as "onnxruntime 1.32.0, openvino 2026.4.1"

    def check_read(self) -> None:
        """Refuse a negative number of CPUs, a limit that allows none, and an unknown device."""
        if self.cpus < 0:
            raise InputError(f"cpus is {self.cpus}, but must be at least 0")
        if self.cores_allowed is not None and not 0 < self.cores_allowed < math.inf:
            raise InputError(f"cores_allowed is {self.cores_allowed}, but must be above 0, and finite")
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device is {self.device!r}, but must be cpu or cuda")

    @property
    def fingerprint(self) -> str:
        """12 hex digits of SHA-256 over the fields (see the class)."""
        data = asdict(self)
        del data["hostname"]
        if self.cpu_limit is None:
            del data["cores_allowed"]
        if self.compilers is None:
            del data["compilers"]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def cpu_limit(self) -> float | None:
        """The limit on the CPU time of this process, in CPUs, or None if there is none or it is unknown."""
        allowed = self.cores_allowed
        return allowed if allowed is not None and allowed < self.cpus else None

    @property
    def hardware(self) -> str:
        """The machine as text, without its limits: "NVIDIA H200, 143771 MiB; 16 × AMD EPYC 9555, Linux x86_64"."""
        return self._describe_machine(f"{self.cpus} × {self.cpu}, {self.system}")

    @property
    def limited_hardware(self) -> str:
        """The same with the limit, if there is one: "16 × AMD EPYC 9555 (1.5 cores allowed), Linux x86_64"."""
        limit = "" if self.cpu_limit is None else f" ({self.cpu_limit:g} cores allowed)"
        return self._describe_machine(f"{self.cpus} × {self.cpu}{limit}, {self.system}")

    def _describe_machine(self, host: str) -> str:
        if self.device == "cpu":
            return host
        memory = f", {self.gpu_memory_mib} MiB" if self.gpu_memory_mib else ""
        return f"{self.gpu or self.device}{memory}; {host}"

    def list_different_fields(self, other: Environment) -> list[str]:
        """Return the names of the fields that differ for every plan. A limit only counts if both sides are known."""
        apart = ("hostname", "cores_allowed", "compilers")
        names = (field.name for field in fields(self) if field.name not in apart)
        found = [name for name in names if getattr(self, name) != getattr(other, name)]
        is_known = None not in (self.cores_allowed, other.cores_allowed)
        return [*found, "cores_allowed"] if is_known and self.cpu_limit != other.cpu_limit else found

    def differences(self, other: Environment) -> list[str]:
        """List each difference, such as "torch: 2.11.0 there, 2.13.0 here". `other` is here."""
        return self.describe_differences(other, "there", "here")

    def describe_differences(self, other: Environment, one: str, another: str) -> list[str]:
        """List each difference with the words for the two, such as "torch: 2.11.0 before, 2.13.0 now"."""
        return [
            f"{_label(name)}: {self._format_field(name)} {one}, {other._format_field(name)} {another}"
            for name in self.list_different_fields(other)
        ]

    def _format_field(self, name: str) -> str:
        value = getattr(self, name)
        return f"{value:g}" if isinstance(value, float) else str(value)


def detect(device: str) -> Environment:
    """Detect this machine and software, for `device` "cpu" or "cuda"."""
    gpu, cpus = detect_gpu() if device == "cuda" else None, available_cpus()
    return Environment(
        device=device,
        hostname=platform.node(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_name(),
        cpus=cpus,
        python=platform.python_version(),
        torch=torch_version(),
        triton=package_version("triton") if device == "cuda" else None,
        cuda=torch_cuda_version() if device == "cuda" else None,
        gpu=gpu["name"] if gpu else None,
        gpu_memory_mib=int(gpu["memory_mib"]) if gpu and gpu["memory_mib"].isdigit() else None,
        gpu_capability=gpu["capability"] if gpu else None,
        driver=gpu["driver"] if gpu else None,
        cores_allowed=min(cpu_quota() or math.inf, float(cpus)),
        compilers=_list_compilers(),
    )


def _list_compilers() -> str | None:
    found = [(name, version) for name in COMPILERS if (version := package_version(name))]
    return ", ".join(f"{name} {version}" for name, version in found) or None


def _label(name: str) -> str:
    return "CPU cores allowed" if name == "cores_allowed" else name


def available_cpus() -> int:
    """Count the logical CPUs that this process may be scheduled on."""
    return len(usable_cpus()) or os.cpu_count() or 1


def usable_cpus() -> frozenset[int]:
    """Return the logical CPUs that this process may be scheduled on, or none if the system does not report them."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None if it is absent."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_version() -> str:
    """Return torch's full version with its build tag ("2.13.0+cpu"), or "absent"."""
    return _torch_version_field("__version__") or package_version("torch") or "absent"


def torch_cuda_version() -> str | None:
    """Return the CUDA version of torch's build, or None for a CPU build."""
    return _torch_version_field("cuda")


@functools.cache
def _torch_version_field(field: str) -> str | None:
    """Read one field of `torch/version.py` as text, which is 1,000 times faster than importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    found = re.search(rf"^{field}\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else None


@functools.cache
def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "unknown"


@functools.cache
def detect_gpu() -> dict[str, str] | None:
    """Describe the first visible GPU (name, memory_mib, capability, driver) by `nvidia-smi`, or return None."""
    rows = query_gpu("name,memory.total,compute_cap,driver_version")
    if not rows:
        return None
    return dict(zip(("name", "memory_mib", "capability", "driver"), rows[0], strict=True))


def default_device() -> Literal["cpu", "cuda"]:
    """Return "cuda" if a GPU is visible and torch is built to use it, else "cpu"."""
    return "cuda" if torch_cuda_version() is not None and detect_gpu() is not None else "cpu"


def query_gpu(fields: str, table: str = "gpu") -> list[list[str]]:
    """Run `nvidia-smi --query-<table>`. Return its rows, or none without a driver.

    It creates no CUDA context. If `CUDA_VISIBLE_DEVICES` is set, its first entry selects the GPU. If that is empty or
    negative, there is none.
    """
    command = ["nvidia-smi", f"--query-{table}={fields}", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        first = visible.split(",")[0].strip()
        if not first or first.startswith("-"):
            return []
        command.append(f"--id={first}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


CGROUP_ROOT, CGROUP_OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Version 2 keeps limits in the folder of the group and of every group above it, version 1 below that of its controller
`cpu`. In a container the files of its own group often lie at the root. A missing or odd file tells nothing."""
CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""Names of the folder that version 1 keeps the controller in."""


def cpu_quota(root: Path = CGROUP_ROOT, own: Path = CGROUP_OWN) -> float | None:
    """Return the number of CPUs' worth of time that the control groups of this process allow, or None if unlimited."""
    limits = [_read_limit(group) for group in _list_groups(root, own)]
    least = min(limits, default=math.inf)
    return None if least == math.inf else least


def read_throttled_s(root: Path = CGROUP_ROOT, own: Path = CGROUP_OWN) -> float | None:
    """Return the seconds for which groups of this process were stopped as a quota was spent, or None if unknown.

    The seconds of all groups are added up, so that an increase in any of them shows.
    """
    found = [seconds for group in _list_groups(root, own) if (seconds := _read_throttled(group)) is not None]
    return sum(found) if found else None


def _list_groups(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders that may hold limits of this process: roots first, then its groups and those above them."""
    controller = next((root / name for name in CONTROLLERS if (root / name).is_dir()), root)
    bases = {"": root, "cpu": controller}
    yield from dict.fromkeys(bases.values())
    for line in (read_text(own) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = bases.get("cpu" if "cpu" in controllers.split(",") else controllers)
        if base is not None:
            group = base / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if base in folder.parents)


def _read_limit(group: Path) -> float:
    """Return the CPUs' worth of time that one group allows, or infinity if it sets no limit."""
    quota, period = [*(read_text(group / "cpu.max") or "max").split(), "100000"][:2]
    version_1 = (read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return min(_divide(quota, period), _divide(*(text or "" for text in version_1)))


def _divide(quota: str, period: str) -> float:
    try:
        share = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file: no limit
        return math.inf
    return share if share > 0 else math.inf  # version 1 says -1 for no limit


def _read_throttled(group: Path) -> float | None:
    """Return the seconds for which one group was stopped. Version 2 counts microseconds, version 1 nanoseconds."""
    for line in (read_text(group / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        unit = {"throttled_usec": 1e-6, "throttled_time": 1e-9}.get(name)
        if unit is not None and value.strip().isdecimal():
            return int(value) * unit
    return None


def read_text(path: Path) -> str | None:
    """Return the text of a system file without the space around it, or None if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # no such file, no permission, or no text
        return None
