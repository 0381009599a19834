"""Treat a step with a distributed model as the step of one rank, for which decisions are made."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchwise._torch import distributed, dynamo
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload.train_step import TrainStep, find_sharded_modules, unwrap_ddp

WHO = "training with sharded weights"
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""Attributes that `fully_shard` adds to sharded modules."""


def bare(step: TrainStep) -> TrainStep:
    """Return the step of one rank: the same parts, with the model taken out of DistributedDataParallel.

    Raises:
        InputError: the model is sharded, so no rank has all of it.
    """
    if find_sharded_modules(step.model):
        raise InputError(
            "the model is sharded (fully_shard), so that no rank could run a step alone: tune before you shard it, and "
            "give the decision to torchwise.training.apply afterwards"
        )
    return _inner(step)


@contextlib.contextmanager
def as_decided_for(step: TrainStep) -> Iterator[TrainStep]:
    """Give a step the form from before its model was wrapped or sharded, to compare it with a decision's step.

    `fully_shard` gives a module a derived class, and marks the module and its submodules.
    """
    classes = [(part, type(part)) for part in find_sharded_modules(step.model)]
    marks = [(vars(part), {k: vars(part).pop(k) for k in _MARKS if k in vars(part)}) for part in step.model.modules()]
    try:
        for part, sharded in classes:
            part.__class__ = sharded.__mro__[2]
        yield _inner(step)
    finally:
        for part, sharded in classes:
            part.__class__ = sharded
        for attributes, values in marks:
            attributes.update(values)


def find_rank_refusal(plan: Plan) -> Fallback | None:
    """Return why a plan only works in one process, or None if several ranks can run the plan together."""
    detail = ""
    if plan.capture != "none":
        detail = f"capture is {plan.capture!r}, but exchanges between ranks are not captured"
    elif plan.scope == "loss":
        detail = "scope is 'loss', but the wrapper that spreads the model over ranks must see its call"
    return Fallback(FallbackReason.NOT_FOR_RANKS, detail) if detail else None


@contextlib.contextmanager
def rehearsing(model: torch.nn.Module, patience: float) -> Iterator[None]:
    """Return a context for steps in which a rank may be slow: without exchange, or with a time-out of `patience`.

    Sharded weights must be exchanged in any case. For them, code that cannot be compiled runs as written, as a rank
    that stopped would leave the others waiting.

    Raises:
        UnsupportedError: this torch cannot set how long ranks wait.
    """
    if find_sharded_modules(model):
        with _patient(model, patience), dynamo.patch_config(suppress_errors=True):
            yield
    elif isinstance(model, DistributedDataParallel):
        before = model.require_forward_param_sync
        model.require_forward_param_sync = False  # would broadcast the buffers
        try:
            with model.no_sync():
                yield
        finally:
            model.require_forward_param_sync = before
    else:
        yield


@contextlib.contextmanager
def _patient(model: torch.nn.Module, patience: float) -> Iterator[None]:
    set_timeout = distributed.SET_TIMEOUT.get(WHO)
    before = [(group, _timeout(group)) for group in _groups(model)]
    for group, _ in before:
        set_timeout(timedelta(seconds=patience), group)
    try:
        yield
    finally:
        for group, timeout in before:
            set_timeout(timeout, group)


def _groups(model: torch.nn.Module) -> list[Any]:
    """Return the distinct process groups over which a model is sharded."""
    from torch.distributed.tensor import DTensor

    meshes = {id(p.device_mesh): p.device_mesh for p in model.parameters() if isinstance(p, DTensor)}
    groups = [group for mesh in meshes.values() for group in mesh.get_all_groups()]
    return list({id(group): group for group in groups}.values())


def _timeout(group: Any) -> timedelta:
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    found: timedelta = group._get_backend(device).options._timeout
    return found


def _inner(step: TrainStep) -> TrainStep:
    found = copy.copy(step)
    found.model = unwrap_ddp(step.model)
    return found
