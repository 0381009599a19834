"""Check the interpreter, and its headers for compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.doctor.finding import Finding, bad, ok, warn
from torchwise.doctor.system_info import SystemInfo

OLDEST, NEWEST = (3, 11), (3, 14)


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the version of Python and the presence of Python.h."""
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST:
        yield bad("Python", version, "use Python 3.11 or later")
    elif facts.python[:2] > NEWEST:
        yield warn(
            "Python", f"{version} is newer than all tested versions", "use Python 3.11 to 3.14 if something fails"
        )
    else:
        yield ok("Python", version)
    path, exists = facts.headers
    if exists:
        yield ok("Python headers", path)
    else:
        yield bad(
            "Python headers",
            f"{path} is missing, but compiled kernels need it",
            "install python3-dev (Debian, Ubuntu) or python3-devel (Fedora, RHEL) for this version of Python",
        )
