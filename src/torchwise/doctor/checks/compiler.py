"""The C++ compiler that Inductor calls on the CPU, and Triton for its launchers on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.doctor.finding import Finding, bad, ok
from torchwise.doctor.system_info import SystemInfo

INSTALL = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL) or xcode-select --install (macOS)"


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the attempts to build, load and run a program."""
    compiler = facts.compiler
    if not compiler.error:
        yield ok("C++ compiler", f"{compiler.command} works")
    elif "does not load" in compiler.error or "temporary folder" in compiler.error:
        yield bad(
            "C++ compiler",
            f"{compiler.command}: {compiler.error}",
            "set TMPDIR to a folder that is writable and not mounted noexec",
        )
    elif "CXX" in facts.environ:
        yield bad("C++ compiler", f"CXX={compiler.command}: {compiler.error}", f"unset CXX, or {INSTALL}")
    else:
        yield bad("C++ compiler", f"{compiler.command}: {compiler.error}", INSTALL)
    if compiler.error:
        return
    if compiler.openmp_error:
        yield bad(
            "OpenMP",
            f"{compiler.command} -fopenmp: {compiler.openmp_error}",
            "install libgomp (apt install libgomp1), or libomp-dev for clang",
        )
    else:
        yield ok("OpenMP", f"{compiler.command} supports it")
