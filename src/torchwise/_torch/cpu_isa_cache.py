"""Reuse Inductor's checks of the CPU's instruction sets in other processes.

For each instruction set, Inductor compiles a small library and loads it in a new Python process, before it uses any
code from its cache. With an empty cache that took five seconds with torch 2.13 (AMD EPYC), and twelve with 2.11, whose
child processes import torch. The results depend only on the machine and its software. Inductor still reads the CPU's
instruction sets in each process.

`TORCHINDUCTOR_VEC_ISA_OK=1` would also skip the checks, but changes the keys of the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchwise._torch import inductor
from torchwise.errors import UnsupportedError

FEATURE = "code compiled elsewhere"

Check = Callable[[Any, str], bool]


@dataclass(frozen=True, slots=True)
class TimedCheck:
    """The result of a check, and its cost.

    Attributes:
        passed: whether code for the instruction set can be compiled and loaded.
        cold_s: wall seconds of the check with an empty cache.
        warm_s: wall seconds of it when the cache has the library.
    """

    passed: bool
    cold_s: float
    warm_s: float


@dataclass(slots=True)
class SharedChecks:
    """The checks that a worker makes, or takes over from earlier workers of the same parent.

    Each candidate compiles into an empty cache, so that each would check anew. A program that is started anew does so,
    too. So the cost of checks that were taken over is added to that of compiling.

    Attributes:
        known: the checks of earlier workers.
        made: the checks of this one.
        tell: called with each check that is made, at once, as the worker may die in the code that it compiles next.
        is_warm: whether this worker has a cache that an earlier one filled.
        owed_s: seconds to add to those that compiling took in this process.
    """

    known: Mapping[str, TimedCheck] = field(default_factory=dict)
    made: dict[str, TimedCheck] = field(default_factory=dict)
    tell: Callable[[dict[str, TimedCheck]], None] = lambda _made: None
    is_warm: bool = False
    owed_s: float = 0.0

    def install(self) -> None:
        """Answer Inductor's checks in this process from now on. A torch that checks in another way goes on as it is."""
        with contextlib.suppress(UnsupportedError):
            kind = inductor.VEC_ISA.get(FEATURE)
            check = kind.check_build
            kind.check_build = lambda isa, code: self._answer(check, isa, code)

    def _answer(self, check: Check, isa: Any, code: str) -> bool:
        key = f"{os.environ.get('CXX', '')} {_key(isa, code)}"
        if (known := self.known.get(key)) is not None:
            self.owed_s += known.warm_s if self.is_warm else known.cold_s
            return known.passed
        if self.is_warm:  # its time would say nothing about an empty cache
            return check(isa, code)
        passed, cold_s = _time(check, isa, code)
        if not passed:  # which may be the fault of a full disk or a busy machine, so that the next worker tries again
            return False
        warm_s = _time(check, isa, code)[1]
        self.owed_s -= warm_s
        self.made[key] = TimedCheck(passed, cold_s, warm_s)
        self.tell({key: self.made[key]})
        return passed


def _time(check: Check, isa: Any, code: str) -> tuple[bool, float]:
    start = time.perf_counter()
    return check(isa, code), time.perf_counter() - start


SHARED = SharedChecks()
"""The checks of this process, if it is a worker."""


@contextlib.contextmanager
def recording() -> Iterator[dict[str, bool]]:
    """Record the result of each check.

    Raises:
        UnsupportedError: this torch checks in another way.
    """
    results: dict[str, bool] = {}

    def record_check(check: Check, isa: Any, code: str) -> bool:
        results[_key(isa, code)] = result = check(isa, code)
        return result

    with _checking(record_check):
        yield results


def replay(known: Mapping[str, bool]) -> None:
    """Have Inductor choose among the instruction sets by known results. A check without a known result runs.

    Raises:
        UnsupportedError: this torch checks in another way.
    """
    if not known:  # the code compiled there needed no instruction set
        return

    def answer_check(check: Check, isa: Any, code: str) -> bool:
        result = known.get(_key(isa, code))
        return check(isa, code) if result is None else result

    with _checking(answer_check):
        inductor.VALID_VEC_ISAS.get(FEATURE)()


@contextlib.contextmanager
def _checking(answer: Callable[[Check, Any, str], bool]) -> Iterator[None]:
    kind = inductor.VEC_ISA.get(FEATURE)
    check = kind.check_build
    kind.check_build = lambda isa, code: answer(check, isa, code)
    try:
        yield
    finally:
        kind.check_build = check


def _key(isa: Any, code: str) -> str:
    """Return the key of a check: the instruction set, the compiler's flags, and the program."""
    return f"{isa} {isa.build_arch_flags()} {hashlib.sha256(code.encode()).hexdigest()[:16]}"
