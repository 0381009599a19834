"""From a decision to what Dynamo is given: a callable of the graph's inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.dynamo import private
from torchwise.dynamo.graph import Captured, CastGraph
from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.realize.backends.inductor import graph_compiler
from torchwise.realize.transforms import GRAPH_PASSES, GRAPH_TRANSFORMS
from torchwise.records import Decision
from torchwise.runtime import Dispatcher

logger = logging.getLogger("torchwise")


def by_decision(captured: Captured, decision: Decision) -> Callable[..., Any]:
    """Return what runs a graph as was decided.

    What Inductor makes of a graph is returned as it is, as its own backend does: Dynamo's guards are before it, and
    AOTAutograd, which it begins with, gives it a backward pass. Plans with more to them (a capture, a number of
    threads, another precision) are dispatched, so that a failure is answered by the graph as it was captured.

    Raises:
        Exception: whatever the compiler raises.
    """
    plan = decision.plan
    if plan.is_eager:
        return captured.module.forward
    if compiles_alone(plan):
        compiled: Callable[..., Any] = graph_compiler(plan)(captured.module, captured.inputs)
        return compiled
    dispatcher: Callable[..., Any] = Dispatcher(captured.graph, decision)
    if isinstance(captured.graph, CastGraph):
        dispatcher = _outside_autocast(dispatcher, captured.device)
    if captured.mode == "inference" and torch.is_grad_enabled():
        # Nothing in it requires gradients, and the plan was proven without.
        return torch.no_grad()(lambda *inputs: dispatcher(*inputs))
    return dispatcher


def _outside_autocast(dispatcher: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return what calls a plan as it was proven: the graph itself enters the autocast that is around it."""

    def called(*inputs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return dispatcher(*inputs)

    return called


def compiles_alone(plan: Plan) -> bool:
    """Whether a plan is nothing but what Inductor makes of a graph, backward pass included."""
    around = replace(plan, backend="eager", mode="default", options=(), transforms=(), scope="whole", shapes="static")
    return (
        plan.backend == "inductor"
        and around == EAGER
        and plan.scope in ("whole", "rolled")
        and plan.mode not in CUDA_GRAPH_MODES  # whose outputs the next call overwrites, unless they are copied
        and not plan.option("freezing")
        and set(plan.transforms) <= {*GRAPH_TRANSFORMS, *GRAPH_PASSES}
    )


def unmeasured(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return what runs a graph that cannot be measured: Inductor's code, or the graph as it is where that fails."""
    plain = module.forward
    try:
        return private.inductor(module, inputs)
    except Exception as error:  # a compiler may raise anything, and the graph itself still runs
        logger.warning("torchwise: Inductor cannot compile a graph, which runs as it was captured", exc_info=error)
        return plain
