"""Describe a model, and find the traits that only one choice needs, by the functions that its declaration names."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.fx import Graph

from torchwise.compile.transforms.function_graphs.record import record
from torchwise.plan.choice import Choice, Code, Stage, load_choices, load_code
from torchwise.plan.trait import Trait
from torchwise.trial.error_origin import Instruments
from torchwise.workload import Workload


def detect_traits(model: Any, call: Callable[[], Any], instruments: Instruments) -> dict[Trait, bool]:
    """Return whether a model has each of these traits.

    Args:
        model: the module, or the callable.
        call: calls it on every example. The functions that it runs are recorded once, for all rewrites of functions.
        instruments: notes which detectors fail.
    """
    found: dict[Trait, bool] = {}
    # Some functions refuse to be watched. Then no function is rewritten.
    graph = instruments.use("which functions a call runs", lambda: record(call), Graph())
    for choice in load_choices().values():
        for trait, code in choice.detectors:
            detect = functools.partial(_detect, choice, code, model, graph)
            has_trait = instruments.use(f"whether it {trait.summary or trait.label}", detect, False)
            found[trait] = found.get(trait, False) or has_trait
    return found


def _detect(choice: Choice, code: Code, model: Any, graph: Graph) -> bool:
    detect = load_code(code)
    return bool(detect(copy.deepcopy(graph) if reads_graph(choice, detect) else model))


def reads_graph(choice: Choice, detect: Callable[..., Any]) -> bool:
    """Return whether a detector of a choice takes the graph of a call, and not the model."""
    try:
        names = [*inspect.signature(detect).parameters]
    except (TypeError, ValueError):  # it is built in
        names = []
    return choice.stage in (Stage.TRACE, Stage.SETTING) or "graph" in names


def describe_model(workload: Workload) -> str:
    """Return the class, size and dtypes of a model in a few words."""
    module = workload.module
    if module is None:
        return f"function {getattr(workload.call, '__qualname__', type(workload.call).__qualname__)}"
    count = sum(p.numel() for p in module.parameters())
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()})
    size = f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count / 1e3:.3g} K" if count >= 1e3 else str(count)
    named = [type(module).__qualname__, f"{size} parameters", *dtypes]
    return ", ".join([*named, f"trained by {type(workload.step.optimizer).__name__}"] if workload.step else named)
