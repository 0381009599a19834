"""Inductor's checks of the CPU's instruction sets, kept from one process for others, so that they need not run again.

For each set of the CPU, Inductor compiles a small library and loads it in a new Python. Only then may any code from its
cache be used. That takes one second with torch 2.13, and twelve with 2.11, whose children import torch. The results
depend on the machine and its software alone. Inductor still asks the CPU for its sets anew, always.

`TORCHINDUCTOR_VEC_ISA_OK=1` would also skip it, but changes the keys of the cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchwise.compile import private

name = functools.partial(private.look_up, "code compiled elsewhere")

VEC_ISA = ("torch._inductor.cpu_vec_isa", "VecISA")
VALID = ("torch._inductor.cpu_vec_isa", "valid_vec_isa_list")

Check = Callable[[Any, str], bool]


@contextlib.contextmanager
def recording() -> Iterator[dict[str, bool]]:
    """Note the result of each check.

    Raises:
        UnsupportedError: this torch checks in another way.
    """
    found: dict[str, bool] = {}

    def note_check(check: Check, isa: Any, code: str) -> bool:
        found[_key(isa, code)] = answer = check(isa, code)
        return answer

    with _checking(note_check):
        yield found


def replay(known: Mapping[str, bool]) -> None:
    """Have Inductor choose among the instruction sets by known results. A check without one is made.

    Raises:
        UnsupportedError: this torch checks in another way.
    """
    if not known:  # the code compiled there asked for no instruction set
        return

    def answer_check(check: Check, isa: Any, code: str) -> bool:
        answer = known.get(_key(isa, code))
        return check(isa, code) if answer is None else answer

    with _checking(answer_check):
        name(VALID)()


@contextlib.contextmanager
def _checking(way: Callable[[Check, Any, str], bool]) -> Iterator[None]:
    kind = name(VEC_ISA)
    check = kind.check_build
    kind.check_build = lambda isa, code: way(check, isa, code)
    try:
        yield
    finally:
        kind.check_build = check


def _key(isa: Any, code: str) -> str:
    """Name a check by its inputs: the set, the compiler's flags, and the program."""
    return f"{isa} {isa.build_arch_flags()} {hashlib.sha256(code.encode()).hexdigest()[:16]}"
