"""The backend function that Dynamo calls for every captured graph.

If the store holds a decision for the graph, it is applied at once. Otherwise workers tune the graph, while Dynamo
waits. Dynamo checks its guards first, so the returned callable only receives inputs of this kind.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchwise.alerts import OnceLog
from torchwise.errors import UnsupportedError
from torchwise.runtime.dynamo import lower
from torchwise.runtime.dynamo.decide import Options, decide
from torchwise.runtime.dynamo.graph import Captured

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
    place = _place_of(module)
    try:
        captured = Captured.from_graph(module, inputs)
        decision = decide(captured, parsed)
        served = lower.lower_graph(captured, decision)
    except UnsupportedError as error:
        _log(str(error), place)
        return lower.lower_unmeasured(module, inputs)
    except Exception as error:  # after any error the graph must run: the user only asked for a faster model
        _log(f"{type(error).__name__}: {error}", place)
        return lower.lower_unmeasured(module, inputs)
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
