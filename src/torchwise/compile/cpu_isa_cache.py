"""Reuse Inductor's checks of the CPU's instruction sets in other processes.

For each instruction set, Inductor compiles a small library and loads it in a new Python process, before it uses any
code from its cache. That takes one second with torch 2.13, and twelve with 2.11, whose child processes import torch.
The results depend only on the machine and its software. Inductor still reads the CPU's instruction sets in each
process.

`TORCHINDUCTOR_VEC_ISA_OK=1` would also skip the checks, but changes the keys of the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchwise._torch import inductor

FEATURE = "code compiled elsewhere"

Check = Callable[[Any, str], bool]


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
