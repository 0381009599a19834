"""Graphs as Dynamo gives them to a backend, and decisions for them without a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise import environment
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision
from torchwise.runtime.dynamo.graph import Captured
from torchwise.workload.identity import describe_example, identity, structure


def decision_for(captured: Captured, plan: Plan) -> Decision:
    return Decision(
        plan, "it is a test", None, None, 0.0, 1.0, 0.0, None,
        workload=WorkloadSpec("live:graph", device=captured.device, mode=captured.mode),  # type: ignore[arg-type]
        identity=identity(captured.workload, captured.mode),
        structure=structure(captured.graph),
        inputs=(describe_example(captured.example),),
        environment=environment.detect(captured.device),
    )  # fmt: skip


def capture_graph(call: Callable[..., Any], *args: Any, **compile: Any) -> Captured:
    """Capture the one graph of a call, as Dynamo gives it to a backend."""
    found: list[Captured] = []

    def take(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(Captured.from_graph(module, inputs))
        return module.forward

    torch._dynamo.reset()
    torch.compile(call, backend=take, fullgraph=True, **compile)(*args)
    (one,) = found
    return one
