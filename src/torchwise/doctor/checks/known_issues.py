"""Known problems with combinations of software and hardware.

Add a row for a new problem, with the source of the report or measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchwise._torch import dynamo, inductor
from torchwise.doctor.checks.torch import release
from torchwise.doctor.finding import Finding, Status, ok
from torchwise.doctor.system_info import SystemInfo


@dataclass(frozen=True, slots=True)
class Problem:
    """A combination with a known problem.

    Attributes:
        applies: whether a machine has this combination.
        found: the problem.
        advice: advice for the user.
        status: `OK` if it only affects code with a rare option.
    """

    applies: Callable[[SystemInfo], bool]
    found: str
    advice: str
    status: Status = Status.WARN


PROBLEMS = (
    Problem(
        lambda facts: release(facts.torch) == (2, 11),
        "torch 2.11 miscompiles the broadcast addition of complex tensors (pytorch/pytorch#174891)",
        "use torch 2.13 or later for complex models; verification rejects wrong plans",
    ),
    Problem(
        lambda facts: (
            release(facts.torch) == (2, 11)
            and (facts.cuda_build or "").startswith("13.")
            and "H200" in (facts.gpu or {}).get("name", "")
        ),
        f"{inductor.AOTI_LOAD} ended the process with SIGSEGV on an H200, with torch 2.11 for CUDA 13.0",
        "load no AOTInductor packages in important processes; use the caches of torch.compile instead",
    ),
    Problem(
        lambda facts: (2, 11) <= release(facts.torch) <= (2, 13),
        f"training an LSTM with {dynamo.CONFIG}.allow_rnn=True crashes",
        "leave allow_rnn at its default, False",
        Status.OK,
    ),
)


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Report each known problem of this machine."""
    if facts.torch == "absent":
        return
    problems = [problem for problem in PROBLEMS if problem.applies(facts)]
    for problem in problems:
        yield Finding("known problem", problem.status, problem.found, problem.advice)
    if not problems:
        yield ok("known problems", f"none with torch {facts.torch}")
