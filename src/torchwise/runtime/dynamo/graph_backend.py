"""The backend function that Dynamo calls for every captured graph.

If the store holds a decision for the graph, it is applied at once. Otherwise workers tune the graph, while Dynamo
waits. Dynamo checks its guards first, so the returned callable only receives inputs of this kind.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise._torch.debug_logs import show_logs
from torchwise.alerts import OnceLog
from torchwise.compile.backends.inductor import graph_compiler
from torchwise.compile.transforms import has_stage
from torchwise.errors import UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.plan.choice import Stage
from torchwise.plan.rules import CUDA_GRAPH_MODES, has_fixed_weights
from torchwise.records import Decision
from torchwise.runtime import Dispatcher
from torchwise.runtime.dynamo.decide import Options, decide
from torchwise.runtime.dynamo.graph import Captured, CastGraph

logger = logging.getLogger("torchwise")

_logged = OnceLog()


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    name: str | None = None,  # noqa: ARG001 - newer versions of torch pass it
) -> Callable[..., Any]:
    """Return the fastest verified way to run a captured graph: eager, compiled, or captured in a CUDA graph.

    Do not call this, but `torch.compile(model, backend="torchwise", options={...})`. A graph that cannot be measured is
    compiled by Inductor with its defaults. A graph that Inductor cannot compile either runs unchanged. Each reason is
    logged once.

    Args:
        module: the captured graph.
        inputs: examples of its inputs, weights included.
        options: the fields of `Options`.
        mode: must be left out, as measurements choose Inductor's mode.
        name: name of the compiled code, which torch may pass.

    Raises:
        InputError: an option is unknown, or its value is invalid.
    """
    parsed = Options.read(options, mode)
    show_logs()
    place = _place_of(module)
    try:
        captured = Captured.from_graph(module, inputs)
        decision = decide(captured, parsed)
        served = lower_graph(captured, decision)
    except UnsupportedError as error:
        _log(str(error), place)
        return lower_unmeasured(module, inputs)
    except Exception as error:  # after any error the graph must run: the user only asked for a faster model
        _log(f"{type(error).__name__}: {error}", place)
        return lower_unmeasured(module, inputs)
    logger.info("torchwise: the graph at %s runs as %s: %s", place, decision.plan, decision.reason)
    return served


def _log(reason: str, place: str) -> None:
    if _logged.admit(reason):
        logger.warning("torchwise: the graph at %s is left to Inductor, unmeasured: %s", place, reason)


def _place_of(module: torch.fx.GraphModule) -> str:
    """Return the place in the user's code where a graph begins. Torch does not report places in its own modules."""
    operators = [node for node in module.graph.nodes if node.op.startswith("call")]
    for node in operators:
        if found := re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or ""):
            return ":".join(found[-1])
    return f"an unknown place ({operators[0] if operators else 'empty'})"


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
        and not has_fixed_weights(plan)
        and not has_stage(plan.transforms, Stage.FORM, Stage.MODEL, Stage.CALL, Stage.SETTING)
    )


def lower_unmeasured(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a callable for a graph that cannot be measured: Inductor's code, or the graph itself if that fails."""
    plain = module.forward
    try:
        return dynamo.compile_graph(module, inputs)
    except Exception as error:  # a compiler may raise any error, and the graph itself still runs
        logger.warning("torchwise: Inductor cannot compile a graph, which runs as it was captured", exc_info=error)
        return plain
