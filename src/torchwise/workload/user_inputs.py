"""Read the caller's workload: a live model with its inputs, or a target that has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchwise.errors import InputError
from torchwise.plan.workload_spec import LIVE
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example, Workload


def read_workload(
    model: Any, args: Any, kwargs: dict[str, Any] | None, examples: Sequence[Example] | None
) -> Workload | None:
    """Return a live workload, or None for a target string.

    Raises:
        InputError: inputs are missing, given twice, or given for a target that brings its own.
    """
    has_inputs = args is not None or kwargs is not None
    if isinstance(model, (str, Workload)):
        if has_inputs or examples is not None:
            raise InputError(
                "args, kwargs or examples are given, but a target or a Workload has its own inputs: leave them out"
            )
        return model if isinstance(model, Workload) else None
    if examples is not None:
        if has_inputs:
            raise InputError("examples are given together with args or kwargs: pass only one of them")
        return Workload(model, tuple(examples))
    if not has_inputs:
        raise InputError("no example inputs are given: pass them after the model, such as (x,)")
    return Workload.of((model, () if args is None else args, kwargs or {}))


def name_of(model: Any) -> str:
    """Return the target of a caller's workload. A live one is named by its class or function."""
    if isinstance(model, str):
        return model
    call = model.call if isinstance(model, Workload) else model
    call = getattr(call, "model", call) if isinstance(call, TrainStep) else call
    return f"{LIVE}{getattr(call, '__qualname__', type(call).__qualname__)}"


def device_of(workload: Workload) -> str:
    """Return the device of a live model and its inputs: "cuda" if any of them is there, else "cpu"."""
    found = [t.device.type for e in workload.examples for t in e.tensors()]
    if workload.module is not None:
        found += [p.device.type for p in workload.module.parameters()]
    return "cuda" if "cuda" in found else "cpu"
