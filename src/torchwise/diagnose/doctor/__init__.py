"""Find problems with running, tuning or timing on this machine, and give advice.

`system_info` inspects the machine once. The checks judge these facts, and inspect nothing themselves. Nothing here
imports torch or uses a GPU. A child process does, so that the doctor works even if torch cannot be imported.
"""

from collections.abc import Callable, Iterable

from torchwise.diagnose.doctor.machine_checks import check_cpu, check_gpu, check_storage
from torchwise.diagnose.doctor.software_checks import (
    check_call_checks,
    check_compiler,
    check_known_issues,
    check_python,
    check_torch,
    check_variables,
)
from torchwise.diagnose.doctor.system_info import Finding, Status, SystemInfo, gather, warn

__all__ = ["Finding", "Status", "SystemInfo", "diagnose", "gather", "judge"]

CHECKS: tuple[Callable[[SystemInfo], Iterable[Finding]], ...] = (
    check_python,
    check_torch,
    check_compiler,
    check_call_checks,
    check_gpu,
    check_cpu,
    check_storage,
    check_variables,
    check_known_issues,
)
"""The checks, in the display order of their findings."""


def diagnose() -> list[Finding]:
    """Inspect this machine and return all findings. This takes about 10 seconds, as it tests the compilers.

    The first time it also compiles the checks of calls for programs to come, which takes as long again.
    """
    return judge(gather())


def judge(facts: SystemInfo) -> list[Finding]:
    """Apply every check to the facts."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(facts)
        except Exception as error:  # a failing check must not hide the others
            topic, problem = check.__name__.removeprefix("check_"), f"{type(error).__name__}: {error}"
            findings.append(warn(topic, f"this check itself failed: {problem}", "report this bug"))
    return findings
