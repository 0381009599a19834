"""The backend "eager", which compiles nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.plan import Plan


def compile(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:  # noqa: ARG001 - the shape of a backend
    """Return `call` unchanged."""
    return call
