"""The C++ compiler that Inductor calls on the CPU, and Triton for its launchers on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.doctor.finding import Finding, bad, ok
from torchwise.doctor.system_info import Facts

INSTALL = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL) or xcode-select --install (macOS)"


def check(facts: Facts) -> Iterator[Finding]:
    """Judge the attempts to build, load and run a program."""
    tried = facts.compiler
    if not tried.error:
        yield ok("C++ compiler", f"{tried.command} builds, and the result loads")
    elif "does not load" in tried.error or "temporary folder" in tried.error:
        yield bad(
            "C++ compiler",
            f"{tried.command}: {tried.error}",
            "set TMPDIR to a folder that can be written and is not mounted noexec",
        )
    elif "CXX" in facts.environ:
        yield bad("C++ compiler", f"CXX={tried.command}: {tried.error}", f"unset CXX, or {INSTALL}")
    else:
        yield bad("C++ compiler", f"{tried.command}: {tried.error}", INSTALL)
    if tried.error:
        return
    if tried.openmp_error:
        yield bad(
            "OpenMP",
            f"{tried.command} -fopenmp: {tried.openmp_error}",
            "install libgomp (apt install libgomp1), or libomp-dev for clang",
        )
    else:
        yield ok("OpenMP", f"{tried.command} has it")
