"""What Dynamo calls with every graph that it captures.

A graph whose decision the store holds is made callable by it at once; else it is tuned in workers, while Dynamo waits.
Dynamo's guards stand before all of this: what is returned is only ever called with inputs of the kind that it was
given here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchwise.dynamo import serve
from torchwise.dynamo.decide import decide
from torchwise.dynamo.graph import Captured
from torchwise.dynamo.options import Options
from torchwise.errors import UnsupportedError

logger = logging.getLogger("torchwise")

_logged: set[str] = set()


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    name: str | None = None,  # noqa: ARG001 - newer versions of torch pass it
) -> Callable[..., Any]:
    """Return the fastest proven way to run a captured graph: eager, compiled, or captured in a CUDA graph.

    Not to be called: `torch.compile(model, backend="torchwise", options={...})` does. A graph that cannot be measured
    is compiled by Inductor as it is, and one that Inductor cannot compile either runs as it is; each reason is logged
    once.

    Args:
        module: the graph that Dynamo captured.
        inputs: examples of its inputs, weights included.
        options: as `Options` describes them.
        mode: must be left out: which mode of Inductor is best is what is measured.
        name: of the compiled code, which torch may give.

    Raises:
        InputError: an option is unknown, or has a value that it cannot have.
    """
    asked = Options.read(options, mode)
    place = _place_of(module)
    try:
        captured = Captured.of(module, inputs)
        decision = decide(captured, asked)
        served = serve.by_decision(captured, decision)
    except UnsupportedError as error:
        _log(str(error), place)
        return serve.unmeasured(module, inputs)
    except Exception as error:  # whatever it was, the graph must run: the user asked for a faster model, not for this
        _log(f"{type(error).__name__}: {error}", place)
        return serve.unmeasured(module, inputs)
    logger.info("torchwise: the graph at %s runs as %s: %s", place, decision.plan, decision.reason)
    return served


def _log(reason: str, place: str) -> None:
    if reason not in _logged:
        _logged.add(reason)
        logger.warning("torchwise: the graph at %s is left to Inductor, unmeasured: %s", place, reason)


def _place_of(module: torch.fx.GraphModule) -> str:
    """Return where in the user's code a graph begins; torch does not say it of what lies within its own modules."""
    operators = [node for node in module.graph.nodes if node.op.startswith("call")]
    for node in operators:
        if found := re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or ""):
            return ":".join(found[-1])
    return f"an unknown place ({operators[0] if operators else 'empty'})"
