"""Calls that are compiled as row programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from torchwise.compile import compile_plan
from torchwise.compile import programs as row_programs
from torchwise.compile.programs import build
from torchwise.plan import Plan
from torchwise.workload import Example

PLAN = Plan(backend="row_programs").with_choice("options", ("fallback_random", True))
"""As it is verified."""


def compile_call(call: Callable[..., Any], *inputs: Any, plan: Plan = PLAN) -> Callable[..., Any]:
    """Return a call, which compiles on its first call."""
    return compile_plan(call, plan, Example(inputs), device="cpu", mode="inference").call


def keep_regions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the code of each region that is made."""
    made: list[Any] = []
    make = row_programs.make_region

    def make_and_keep(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(row_programs, "make_region", make_and_keep)
    return made


def compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each text compiled once by each compiler, for tests of where its library is kept."""
    monkeypatch.setattr(
        build, "_compile", lambda source: _compile(source, build._find_compiler(), build._list_options())
    )


@functools.cache
def _compile(source: str, _compiler: tuple[str, str], _options: tuple[str, ...]) -> bytes:
    return COMPILE(source)


COMPILE = build._compile
