"""A backend in one file: Dynamo traces the model, and `torch.fx` interprets each graph, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.plan import Choice, Numerics, Plan, register


def compile(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Return `call`, traced on its first call of each kind."""
    return torch.compile(call, backend=interpret, dynamic=plan.shapes == "dynamic")


def interpret(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """Return a function that runs a graph."""
    return lambda *args: torch.fx.Interpreter(graph).run(*args)  # one for each call


CHOICE = Choice(
    "backend",
    "interpreted",
    Numerics.EXACT,
    complexity=2,
    summary="graphs are traced by Dynamo and interpreted by torch.fx",
    effort="quick",
    compile_factor=0.1,
    realized_by=compile,
)


def register_choices() -> None:
    """Register the backend: the function that an entry point of the group `torchwise.choices` names."""
    register(CHOICE)
