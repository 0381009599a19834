"""Compilers by name, one file each: `(callable, plan) -> callable`.

A plug-in adds its own compiler to `BACKENDS`. It describes the compiler with `torchwise.plan.register`, so that plans
that name it can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.compile.backends import eager, inductor
from torchwise.plan import Plan

Backend = Callable[[Callable[..., Any], Plan], Callable[..., Any]]
"""Takes the callable to compile and the plan, and returns the callable that answers its calls."""
BACKENDS: dict[str, Backend] = {"eager": eager.compile, "inductor": inductor.compile}
