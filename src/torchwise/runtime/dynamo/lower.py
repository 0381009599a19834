"""Turn a decision into a callable for Dynamo, which takes the graph's inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.compile.backends.inductor import graph_compiler
from torchwise.compile.transforms import has_stage
from torchwise.plan import EAGER, Plan
from torchwise.plan.choice import Stage
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.records import Decision
from torchwise.runtime import Dispatcher
from torchwise.runtime.dynamo.graph import Captured, CastGraph

logger = logging.getLogger("torchwise")


def lower_graph(captured: Captured, decision: Decision) -> Callable[..., Any]:
    """Return a callable that runs a graph by its decision.

    Inductor's code is returned directly, as Inductor's own backend does: Dynamo's guards come before it, and it starts
    with AOTAutograd, which adds a backward pass. Other plans (with a capture, a number of threads, another precision)
    go through a dispatcher, so that the captured graph answers after a failure.

    Raises:
        Exception: any error of the compiler.
    """
    plan = decision.plan
    if plan.is_eager:
        return captured.module.forward
    if compiles_alone(plan):
        compiled: Callable[..., Any] = graph_compiler(plan)(captured.module, captured.inputs)
        return compiled
    dispatcher: Callable[..., Any] = Dispatcher(captured.graph, decision)
    if isinstance(captured.graph, CastGraph):
        dispatcher = _disable_autocast(dispatcher, captured.device)
    if captured.mode == "inference" and torch.is_grad_enabled():
        # Nothing in the graph requires gradients, and the plan was verified without them.
        return torch.no_grad()(lambda *inputs: dispatcher(*inputs))
    return dispatcher


def _disable_autocast(dispatcher: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Wrap a plan's dispatcher to run as verified: the graph itself enters the surrounding autocast."""

    def call(*inputs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return dispatcher(*inputs)

    return call


def compiles_alone(plan: Plan) -> bool:
    """Return whether a plan consists only of Inductor's code for a graph, including its backward pass."""
    around = replace(plan, backend="eager", mode="default", options=(), transforms=(), scope="whole", shapes="static")
    return (
        plan.backend == "inductor"
        and around == EAGER
        and plan.scope in ("whole", "rolled")
        and plan.mode not in CUDA_GRAPH_MODES  # their outputs are overwritten by the next call, unless copied
        and not plan.option("freezing")
        and not has_stage(plan.transforms, Stage.FORM, Stage.MODEL, Stage.CALL)
    )


def lower_unmeasured(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a callable for a graph that cannot be measured: Inductor's code, or the graph itself if that fails."""
    plain = module.forward
    try:
        return dynamo.compile_graph(module, inputs)
    except Exception as error:  # a compiler may raise any error, and the graph itself still runs
        logger.warning("torchwise: Inductor cannot compile a graph, which runs as it was captured", exc_info=error)
        return plain
