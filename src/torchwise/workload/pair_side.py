"""Load one side of a pair: a model or function by itself, or the answer of a factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import TargetError, WorkloadError
from torchwise.workload import target as targets
from torchwise.workload.workload import Workload

OFFERED = ("device", "dtype", "seed")
"""Keywords with which a factory may be called."""


@dataclass(frozen=True, slots=True)
class PairSide:
    """One side of a pair.

    Attributes:
        call: the model or function.
        workload: the model with its inputs, if a factory returned both.
        is_made: whether a factory made it. Otherwise the target names it.
    """

    call: Callable[..., Any]
    workload: Workload | None = None
    is_made: bool = False


def load_side(target: str, *, device: str = "cpu", seed: int = 0) -> PairSide:
    """Load a target: a model, a class of models, a function of tensors, or a factory of any of them.

    A function that needs no argument besides device, dtype and seed is a factory. It returns a callable, or a callable
    with its inputs, as the factories of other commands do.

    Raises:
        TargetError: nothing is found there.
        WorkloadError: the factory raises, or returns no callable.
    """
    found = targets.find_factory(target)
    if isinstance(found, torch.nn.Module):
        return PairSide(found.to(device))
    if not is_factory(found):
        return PairSide(found)
    try:
        return _read(targets.load(target, device=device, seed=seed))
    except WorkloadError as error:
        torch.manual_seed(seed)
        made = _make_callable(found, device, seed)
        if made is None:
            raise TargetError(f"{target} is no model and no function of tensors, and as a factory: {error}") from error
        return PairSide(made.to(device) if isinstance(made, torch.nn.Module) else made, is_made=True)


def is_factory(found: Any) -> bool:
    """Whether something is called without inputs to get a model."""
    if isinstance(found, torch.nn.Module):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # functions written in C
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    return all(p.default is not p.empty or p.kind is p.VAR_KEYWORD or p.name in OFFERED for p in parameters)


def _read(workload: Workload) -> PairSide:
    return PairSide(workload.call, workload, is_made=True)


def _make_callable(factory: Callable[..., Any], device: str, seed: int) -> Callable[..., Any] | None:
    """Return the callable that a factory makes without inputs, or None if it makes none."""
    offered = {"device": device, "dtype": torch.float32, "seed": seed}
    try:
        names = inspect.signature(factory).parameters
        made = factory(**{name: value for name, value in offered.items() if name in names})
    except Exception:  # a factory may raise anything, and its first error is told
        return None
    return made if callable(made) else None
