"""Inspect the machine once, then run every check on the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchwise.doctor.checks import compiler, cpu, gpu, known_issues, python, storage, torch, variables
from torchwise.doctor.finding import Finding, warn
from torchwise.doctor.system_info import SystemInfo, gather

Check = Callable[[SystemInfo], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    python.check,
    torch.check,
    compiler.check,
    gpu.check,
    cpu.check,
    storage.check,
    variables.check,
    known_issues.check,
)
"""The checks, in the display order of their findings."""


def diagnose() -> list[Finding]:
    """Inspect this machine and return all findings.

    This takes about 10 seconds, as it tests the compilers.
    """
    return judge(gather())


def judge(facts: SystemInfo) -> list[Finding]:
    """Apply every check to the facts."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(facts)
        except Exception as error:  # a failing check must not hide the others
            topic = check.__module__.rpartition(".")[2]
            findings.append(
                warn(topic, f"this check itself failed: {type(error).__name__}: {error}", "report this bug")
            )
    return findings
