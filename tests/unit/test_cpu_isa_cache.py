"""Checks of instruction sets are made once, and still count for each candidate that compiles."""

from __future__ import annotations

import time
from typing import Any

import pytest

from torchwise._torch import cpu_isa_cache, inductor
from torchwise._torch.cpu_isa_cache import SharedChecks, TimedCheck


class InstructionSet:
    """Stands in for Inductor's class: the first check builds a library, which takes longer."""

    passes = True

    def __init__(self) -> None:
        self.checked = 0

    def __str__(self) -> str:
        return "avx"

    def build_arch_flags(self) -> str:
        return "-mavx"

    def check_build(self, code: str) -> bool:
        self.checked += 1
        time.sleep(0.05 if self.checked == 1 else 0.01)
        return self.passes


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> type[InstructionSet]:
    class Own(InstructionSet):
        pass

    monkeypatch.setattr(cpu_isa_cache.inductor.VEC_ISA.__class__, "get", lambda *_: Own)
    return Own


def test_a_check_is_timed_with_an_empty_and_with_a_filled_cache(kind: type[InstructionSet]) -> None:
    told: dict[str, TimedCheck] = {}
    shared = SharedChecks(tell=told.update)
    shared.install()
    isa = kind()
    start = time.perf_counter()
    assert isa.check_build("program")
    took = time.perf_counter() - start
    (made,) = shared.made.values()
    assert told == shared.made, "the worker may die before it ends"
    assert made.passed
    assert made.cold_s >= 0.05 > made.warm_s >= 0.01
    assert took + shared.owed_s == pytest.approx(made.cold_s, abs=0.005)  # the second check is not compiling's cost


@pytest.mark.parametrize(("is_warm", "owed"), [(False, 4.0), (True, 0.5)])
def test_a_known_check_is_not_made_and_its_cost_is_owed(kind: type[InstructionSet], is_warm: bool, owed: float) -> None:
    first = SharedChecks()
    first.install()
    kind().check_build("program")
    known = {key: TimedCheck(False, 4.0, 0.5) for key in first.made}
    shared = SharedChecks(known, is_warm=is_warm)
    shared.install()
    isa = kind()
    assert not isa.check_build("program")
    assert isa.checked == 0
    assert shared.owed_s == owed
    assert not shared.made
    isa.check_build("another program")
    assert isa.checked > 0


def test_another_compiler_checks_anew(kind: type[InstructionSet], monkeypatch: pytest.MonkeyPatch) -> None:
    first = SharedChecks()
    first.install()
    kind().check_build("program")
    monkeypatch.setenv("CXX", "clang++")
    shared = SharedChecks(dict(first.made))
    shared.install()
    isa = kind()
    isa.check_build("program")
    assert isa.checked > 0


def test_a_check_that_fails_is_made_once_and_left_to_the_next_worker(kind: type[InstructionSet]) -> None:
    kind.passes = False
    shared = SharedChecks()
    shared.install()
    isa = kind()
    assert not isa.check_build("program")
    assert isa.checked == 1
    assert shared.owed_s == 0
    assert not shared.made, "a full disk fails a check, too"


def test_a_worker_with_a_filled_cache_teaches_nothing(kind: type[InstructionSet]) -> None:
    shared = SharedChecks(is_warm=True)
    shared.install()
    assert kind().check_build("program")
    assert not shared.made


def test_inductor_has_what_is_replaced() -> None:
    found: Any = inductor.VEC_ISA.get("a test")
    assert callable(found.check_build)
