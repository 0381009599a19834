"""Compilers by name: `(callable, plan) -> callable`. The declaration of a backend names the function that realizes it.

A plug-in declares its own with `torchwise.plan.register`, as `plan/choices/inductor.py` does for Inductor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.compile.transforms import has_stage
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.choice import Stage, list_values, load_choices, load_code

Backend = Callable[[Callable[..., Any], Plan], Callable[..., Any]]
"""Takes the callable to compile and the plan, and returns the callable that answers its calls.

That one has the same signature, and the same answers for inputs of any size. Weights that are changed in place take
effect, and the callable's own exceptions come through. `torchwise.testing.backend` has this contract as tests.
"""


def load_backend(name: str, device: str | None = None) -> Backend:
    """Return the backend of that name, for a device.

    Raises:
        UnsupportedError: there is none, a package of it is missing, or not built for the device, or its declaration
            names no function.
    """
    if name == "eager":
        return _run_in_eager
    choice = load_choices().get(("backend", name))
    if choice is None:
        raise UnsupportedError(f"backend is {name!r}, but there are {', '.join(('eager', *list_values('backend')))}")
    if (lacking := choice.tell_missing_package(device)) is not None:
        raise UnsupportedError(f"backend is {name!r}, but {lacking}")
    if choice.realized_by is None:
        raise UnsupportedError(f"backend is {name!r}, but its declaration names no function that compiles")
    return load_code(choice.realized_by)


def _run_in_eager(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Return `call` unchanged for the backend "eager", unless the plan rewrites its functions."""
    if not has_stage(plan.transforms, Stage.TRACE):
        return call
    from torchwise.compile.backends import rewritten  # which imports Dynamo

    return rewritten.compile(call, plan)
