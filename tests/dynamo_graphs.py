"""Graphs as Dynamo gives them to a backend, and decisions for them without a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise import environment
from torchwise.compile.transforms.function_graphs.nodes import name_of
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


def rewrite_and_call(
    call: Callable[..., Any], *inputs: Any, rewrite: Callable[[torch.fx.Graph], int]
) -> tuple[Any, int, list[str]]:
    """Return the answer of a call with rewritten graphs, the places that were rewritten, and the functions left."""
    places, names = 0, []

    def take(module: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal places
        places += rewrite(module.graph)
        module.graph.lint()
        module.recompile()
        names.extend(filter(None, map(name_of, module.graph.nodes)))
        return module.forward

    torch.compiler.reset()
    return torch.compile(call, backend=take)(*inputs), places, names
