"""What a caller gave to be run: a live model with its inputs, or a target that brings its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchwise.errors import InputError
from torchwise.workload.workload import Example, Workload


def given(model: Any, args: Any, kwargs: dict[str, Any] | None, examples: Sequence[Example] | None) -> Workload | None:
    """Return a live workload, or None for a target string.

    Raises:
        InputError: inputs are missing, given twice, or given for a target that brings its own.
    """
    has_inputs = args is not None or kwargs is not None
    if isinstance(model, (str, Workload)):
        if has_inputs or examples is not None:
            raise InputError(
                "a target or a Workload brings its own example inputs, but args, kwargs or examples are given"
            )
        return model if isinstance(model, Workload) else None
    if examples is not None:
        if has_inputs:
            raise InputError("examples and args or kwargs are given, but only one of them can be meant")
        return Workload(model, tuple(examples))
    if not has_inputs:
        raise InputError("no example inputs are given, but they are needed: give them behind the model, as (x,)")
    return Workload.of((model, () if args is None else args, kwargs or {}))
