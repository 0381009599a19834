"""Synchronise the ranks of a job, and treat a step with a distributed model as the step of one rank.

Rank 0 computes a result, all receive it, and ranks wait for each other. They use their own process group, over gloo,
for three reasons. Its time-out can be long even if that of the training's collectives is short. It needs no device. A
rank that ends closes its connections, which the others notice at once.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchwise import errors
from torchwise._torch import dynamo, modules
from torchwise.errors import InputError, TorchwiseError
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload.train_step import TrainStep, find_sharded_modules, unwrap_ddp

PATIENCE_S = 3 * 3600.0
"""Seconds for ranks to wait for each other, longer than the most thorough search, and than any compilation."""
_OF_RANKS = re.compile(r"(RANK|WORLD_SIZE)$|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_")
"""Environment variables by which a launcher sets a process's rank."""

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
    set_timeout = modules.SET_GROUP_TIMEOUT.get(WHO)
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


class Ranks:
    """All ranks of this job. A process without other ranks waits for nobody.

    Every rank must create one at the same place of its program, and call the same methods in the same order.

    Args:
        patience: seconds to wait for the others, after which their absence is an error.

    Raises:
        InputError: `patience` is not above 0.
    """

    def __init__(self, patience: float = PATIENCE_S) -> None:
        if not patience > 0:
            raise InputError(f"patience is {patience!r} s, but must be above 0")
        self._patience = patience
        self._group: Any = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            with self._together("meet"):
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))

    @property
    def are_several(self) -> bool:
        """Whether there are other ranks."""
        return self._group is not None

    def broadcast_from_rank0(self, find: Callable[[], str]) -> str:
        """Call `find` on rank 0 only, and return its result, a text, on every rank.

        Raises:
            TorchwiseError: (on every rank) `find` raised, or a rank ended meanwhile.
        """
        if self._group is None:
            return find()
        if dist.get_rank() != 0:
            return _read_message(json.loads(self._broadcast("")))
        try:
            said = {"found": find()}
        except BaseException as error:  # raised again: the other ranks must know, or they would wait
            self._broadcast(json.dumps({"error": type(error).__name__, "message": str(error)}))
            raise
        self._broadcast(json.dumps(said))
        return said["found"]

    def everywhere(self, *holds: bool) -> tuple[bool, ...]:
        """Return whether each of `holds` is true on every rank.

        Raises:
            TorchwiseError: a rank ended meanwhile.
        """
        if self._group is None:
            return holds
        flags = torch.tensor(holds, dtype=torch.int32)
        with self._together("agree"):
            dist.all_reduce(flags, dist.ReduceOp.MIN, group=self._group)
        return tuple(bool(flag) for flag in flags)

    def close(self) -> None:
        """Close the connections. No method may be called afterwards."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _broadcast(self, text: str) -> str:
        words = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(words)])
        with self._together("wait for the decision of rank 0"):
            dist.broadcast(length, 0, group=self._group)
            words = words if dist.get_rank() == 0 else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(words, 0, group=self._group)
        return bytes(words.tolist()).decode()

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo's error for a closed connection, and for a time-out
            raise TorchwiseError(
                f"a rank ended, or was away for more than {self._patience:.0f} s, while the ranks of this job {what}: "
                f"read the log of that rank, and start the job again ({error})"
            ) from error


def _read_message(said: dict[str, str]) -> str:
    if "found" in said:
        return said["found"]
    kind = getattr(errors, said["error"], TorchwiseError)
    raise kind(f"rank 0, which decides for all, failed ({said['error']}): {said['message']}")


@contextlib.contextmanager
def without_rank() -> Iterator[None]:
    """Hide this process's rank from processes that start meanwhile, as they work alone."""
    hidden = {name: value for name, value in os.environ.items() if _OF_RANKS.match(name)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
