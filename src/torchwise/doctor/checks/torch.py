"""Check PyTorch: its version, its build, and whether it imports and compiles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchwise.doctor.finding import Finding, bad, ok, warn
from torchwise.doctor.system_info import SystemInfo

OLDEST, NEWEST = (2, 11), (2, 15)
SUPPORTED = "Torchwise supports 2.11 to 2.15"


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a version such as "2.13.0+cpu", or (0, 0) if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the version, the build, and the probe's results."""
    yield _version(facts)
    if facts.torch == "absent":
        return
    yield _build(facts)
    yield from _inductor_cpu(facts)


def _version(facts: SystemInfo) -> Finding:
    imported = facts.probe.get("import")
    if facts.torch == "absent":
        return bad("torch", "it is not installed for this Python", "pip install 'torch>=2.11'")
    if imported is not None and imported.failed:
        return bad(
            "torch",
            f"{facts.torch} is installed, but importing it fails: {imported.detail}",
            "reinstall it: pip install --force-reinstall torch",
        )
    if release(facts.torch) < OLDEST:
        return bad("torch", f"{facts.torch} is too old; {SUPPORTED}", "pip install --upgrade torch")
    if release(facts.torch) > NEWEST:
        return warn(
            "torch",
            f"{facts.torch} is newer than all tested versions; {SUPPORTED}",
            "update Torchwise if possible; every plan is still verified before its use",
        )
    return ok("torch", facts.torch)


def _build(facts: SystemInfo) -> Finding:
    if facts.cuda_build is not None:
        return ok("torch build", f"for CUDA {facts.cuda_build}" + ("" if facts.gpu else "; it also runs on the CPU"))
    if facts.gpu is not None:
        return warn(
            "torch build",
            f"for the CPU only, but there is a GPU ({facts.gpu['name']})",
            "install a CUDA build to use it: https://pytorch.org/get-started/locally",
        )
    return ok("torch build", "for the CPU")


def _inductor_cpu(facts: SystemInfo) -> Iterator[Finding]:
    step = facts.probe.get("inductor_cpu")
    if step is None:
        return
    if step.failed:
        yield bad(
            "Inductor on the CPU",
            f"compiling a small function fails: {step.detail}",
            "fix the C++ compiler, OpenMP or Python headers first if they have findings, too; "
            "otherwise run again with TORCHDYNAMO_VERBOSE=1 and search for the message",
        )
    else:
        yield ok("Inductor on the CPU", f"{step.detail}, in {step.seconds:.1f} s")
