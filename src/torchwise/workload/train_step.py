"""A whole training step: forward, loss, backward, clipping, the optimizer's update, the scheduler, averaged weights.

It follows PyTorch's notes "Automatic Mixed Precision examples" for scaling, accumulation and clipping. A plan changes
only its `Parts`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise.errors import WorkloadError
from torchwise.keywords import checked_keywords
from torchwise.workload import pytree, step_state
from torchwise.workload.closure import copy_with_closures
from torchwise.workload.deep_copy import Memo, deep_copy
from torchwise.workload.step_state import (
    are_hooked,
    check,
    check_inputs,
    check_loss,
    convert_tensor_rates,
    find_lost_attributes,
    forget_scaling,
    stepping_by,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The functions and settings that run a step. A plan replaces some of them.

    Attributes:
        loss: takes the batch, `(inputs, *targets)`, and returns the loss.
        update: the optimizer's update.
        pieces: number of microbatches of a batch. They run one after another, and their gradients are added.
        autocast: the dtype of forward and loss in operations where it is safe, or None.
        scaler: scales the loss, so that small gradients survive in float16.
    """

    loss: Callable[..., torch.Tensor]
    update: Callable[[], Any]
    pieces: int = 1
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None


@checked_keywords()
class TrainStep:
    """A training step: one call runs one step, and returns its detached loss.

    ::

        step = torchwise.TrainStep(model, torch.nn.CrossEntropyLoss(), optimizer, scheduler=scheduler, clip_norm=1.0)
        step = torchwise.optimize(step, (x, y), calls=100_000)
        for x, y in loader:
            loss = step(x, y)

    The first item of a batch goes to the model. It is a tensor, a tuple or list of positional arguments, or a dict of
    keyword arguments, also a `transformers.BatchEncoding`. The other items go to the loss, after the model's outputs.
    By itself a step runs in eager. `tune`, `apply` and `optimize` accept it like a model.

    A step clears gradients, runs forward and loss under autocast, then backward, and unscales and clips gradients. Then
    the optimizer and the scaler step, then the scheduler and the averaged weights. If gradients are not finite, the
    scaler skips the update, which changes no parameter. The scheduler still steps.

    Args:
        model: the model to train, with or without a distributed wrapper.
        loss: takes `(outputs, *targets)` and returns a scalar, the mean over the batch if the batch is split. None if
            the model returns the loss itself, or an object with the attribute `loss`.
        optimizer: an optimizer of `torch.optim`, or with the same interface.
        scheduler: one or several schedulers, stepped once after each step.
        scaler: the gradient scaler, for float16.
        autocast: torch.bfloat16 or torch.float16, or None for the model's own precision.
        accumulate: number of equal pieces into which a batch is split along the first dimension of its tensors.
        clip_norm: the largest norm that all gradients together may have.
        clip_value: the largest value that an element of a gradient may have.
        ema: averaged weights (`torch.optim.swa_utils.AveragedModel`) to update after each step.

    Raises:
        WorkloadError: an argument is of the wrong kind, or the optimizer trains parameters that are in neither model
            nor loss. On a call: there is no loss, or the batch cannot be split into equal pieces.
    """

    _left_hooks = False
    """Whether it is a copy of a step whose parameters have hooks, which copies and pickles leave behind."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        scaler: torch.amp.GradScaler | None = None,
        autocast: torch.dtype | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        ema: torch.optim.swa_utils.AveragedModel | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.schedulers: tuple[Any, ...] = _several(scheduler)
        self.scaler = scaler
        self.autocast = autocast
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.ema = ema
        check(self)

    def __repr__(self) -> str:
        return f"<TrainStep of {type(self.model).__qualname__} by {type(self.optimizer).__qualname__}>"

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one step as written, and return its loss, detached."""
        loss = self.compute(self.parts(), *batch)
        self.advance()
        return loss

    def parts(self) -> Parts:
        """Return the parts as written."""
        return Parts(self.loss_of, self.optimizer.step, self.accumulate, self.autocast, self.scaler)

    def taken_by(self, model: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return a function that takes this step as written, but with `model`, such as a compiled form, for its own."""

        def take(*batch: Any) -> torch.Tensor:
            found = self.compute(replace(self.parts(), loss=self.loss_by(model)), *batch)
            self.advance()
            return found

        return take

    def loss_of(self, inputs: Any, *targets: Any) -> torch.Tensor:
        """Return the loss of a batch, with its graph."""
        return self.loss_by(self.model)(inputs, *targets)

    def loss_by(self, model: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return a function for the loss of a batch, with its graph, that calls `model` in place of the step's own."""

        def loss(inputs: Any, *targets: Any) -> torch.Tensor:
            return self.loss_from(self.outputs_of(model, inputs), *targets)

        return loss

    @staticmethod
    def outputs_of(model: Callable[..., Any], inputs: Any) -> Any:
        """Call `model` on the first item of a batch."""
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)

    def loss_from(self, outputs: Any, *targets: Any) -> torch.Tensor:
        """Return the loss of the model's outputs.

        Raises:
            WorkloadError: there is no loss in them, it is no scalar, or nothing takes the targets.
        """
        if self.loss is None and targets:
            raise WorkloadError(
                f"the batch has {len(targets)} item(s) after the inputs, but loss is None, so nothing takes them: "
                "pass `loss`, or only the inputs (a dict of keyword arguments if the model takes targets)"
            )
        value: Any
        if self.loss is not None:
            value = self.loss(outputs, *targets)
        elif isinstance(outputs, Mapping):
            value = outputs.get("loss")
        else:
            value = outputs if isinstance(outputs, torch.Tensor) else getattr(outputs, "loss", None)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            kind = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise WorkloadError(
                f"the loss is of {kind}, but must be a tensor of one number: pass `loss`, a function of the model's "
                "outputs and the rest of the batch that returns one"
            )
        loss: torch.Tensor = value
        return loss

    def compute(self, parts: Parts, *batch: Any) -> torch.Tensor:
        """Run forward, backward, clipping and the update with `parts`. Return the loss, detached."""
        check_inputs(batch)
        if isinstance(self.optimizer, torch.optim.LBFGS):  # it may compute the loss several times
            loss: torch.Tensor = self.optimizer.step(lambda: self._gradients(parts, batch))
            return loss
        loss = self._gradients(parts, batch)
        self._update(parts)
        return loss

    def _gradients(self, parts: Parts, batch: tuple[Any, ...]) -> torch.Tensor:
        """Run forward and backward, piece by piece. Return the loss, detached."""
        self.optimizer.zero_grad(set_to_none=True)
        total: torch.Tensor | None = None
        for number, piece in enumerate(pieces_of(batch, parts.pieces), 1):
            with _synchronised(self.model, number == parts.pieces):
                with self._autocast(parts.autocast):
                    loss = parts.loss(*piece)
                loss = loss / parts.pieces if parts.pieces > 1 else loss
                (parts.scaler.scale(loss) if parts.scaler else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None, "a batch has at least one piece"
        if isinstance(self.optimizer, torch.optim.LBFGS):
            self._clip()
        return total

    def advance(self) -> None:
        """Step the schedulers and the averaged weights, which follow an update."""
        for scheduler in self.schedulers:
            scheduler.step()
        if self.ema is not None:
            self.ema.update_parameters(unwrap_ddp(self.model))

    def _clip(self) -> None:
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained(), self.clip_norm)
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(self.trained(), self.clip_value)

    def _update(self, parts: Parts) -> None:
        if parts.scaler is None:
            self._clip()
            parts.update()
            return
        try:
            parts.scaler.unscale_(self.optimizer)
            self._clip()
            with stepping_by(self.optimizer, parts.update):
                parts.scaler.step(self.optimizer)
            parts.scaler.update()
        except BaseException:  # raised again: or no later step could be taken, be it by a plan or as written
            forget_scaling(parts.scaler, self.optimizer)
            raise

    def _autocast(self, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
        if dtype is None:
            return contextlib.nullcontext()
        first = next(p for group in self.optimizer.param_groups for p in group["params"])
        return torch.autocast(first.device.type, dtype)

    def trained(self) -> list[torch.nn.Parameter]:
        """List the parameters that the optimizer updates."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules by name: the model, and the loss and the averaged weights if they are modules."""
        found = {"model": unwrap_ddp(self.model), "loss": self.loss, "ema": self.ema}
        return {name: module for name, module in found.items() if isinstance(module, torch.nn.Module)}

    @property
    def has_hooks(self) -> bool:
        """Whether parameters, here or in the step that this is a copy of, have hooks called with their gradients."""
        return self._left_hooks or are_hooked(p for module in self.modules().values() for p in module.parameters())

    def copy(self) -> TrainStep:
        """Return a step of the same state that shares nothing with this one. `check_loss` refuses some losses."""
        copied: TrainStep = deep_copy(self)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainStep:
        """Copy all of it, including the objects that the loss closes over."""
        if not isinstance(memo, Memo):
            whole: TrainStep = deep_copy(self, memo)
            return whole
        check_loss(self)
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        loss = copy_with_closures(self.loss, memo)  # first, as its error says why a loss cannot be copied
        copied.__setstate__({**copy.deepcopy(self.__getstate__(), memo), "loss": loss})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Include the attributes that copies of an optimizer leave behind, such as LBFGS's list of its parameters."""
        return {**vars(self), "_lost": find_lost_attributes(self.optimizer), "_left_hooks": self.has_hooks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes, and give the optimizer its own."""
        lost = state.pop("_lost")
        vars(self).update(state)
        vars(self.optimizer).update(lost)

    def snapshot(self) -> Callable[[], None]:
        """Copy all state that a step changes. Return a function that restores it, in place and bit by bit."""
        return step_state.take_snapshot(self)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint, loadable without Torchwise: each part's own `state_dict`, unprefixed, by its name."""
        found: dict[str, Any] = {name: module.state_dict() for name, module in self.modules().items()}
        found["optimizer"] = self.optimizer.state_dict()
        found["schedulers"] = [convert_tensor_rates(scheduler.state_dict()) for scheduler in self.schedulers]
        if self.scaler is not None:
            found["scaler"] = self.scaler.state_dict()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`.

        A scaler's state is loaded if there is a scaler on both sides: a plan may have one of its own.

        Raises:
            WorkloadError: it holds other parts than this step has.
        """
        names = {*self.modules(), "optimizer", "schedulers"}
        if set(state) - {"scaler"} != names or len(state["schedulers"]) != len(self.schedulers):
            raise WorkloadError(
                f"the checkpoint holds {', '.join(sorted(state))}, but this step has {', '.join(sorted(names))}, with "
                f"{len(self.schedulers)} scheduler(s)"
            )
        for name, module in self.modules().items():
            module.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        if self.scaler is not None and "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])

    def to(self, device: str) -> TrainStep:
        """Move all of it to `device`, in place."""
        for module in self.modules().values():
            module.to(device)
        step_state.move_state(self, device)
        return self


def pieces_of(batch: tuple[Any, ...], count: int) -> Iterator[tuple[Any, ...]]:
    """Cut a batch into `count` parts of equal size along the first dimension of each of its tensors.

    Raises:
        WorkloadError: a tensor's first dimension cannot be divided so.
    """
    if count == 1:
        yield batch
        return
    for tensor in pytree.tensors(batch):
        if tensor.dim() == 0 or tensor.shape[0] % count:
            raise WorkloadError(
                f"a tensor of the batch has shape {tuple(tensor.shape)}, which cannot be split into {count} equal "
                f"microbatches along its first dimension: use a batch size divisible by {count}, or accumulate=1"
            )
    for number in range(count):
        yield pytree.map_tensors(functools.partial(_piece, count, number), batch)


def _piece(count: int, number: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(count)[number]


def unwrap_ddp(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside DistributedDataParallel, or any other module as it is."""
    from torch.nn.parallel import DistributedDataParallel

    return model.module if isinstance(model, DistributedDataParallel) else model


def find_sharded_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """List the parts of a model on which `fully_shard` (FSDP2) was used."""
    import torch.distributed as dist

    if not dist.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in model.modules() if isinstance(part, FSDPModule)]


@contextlib.contextmanager
def _synchronised(model: Any, last: bool) -> Iterator[None]:
    """Exchange gradients between ranks only after the last microbatch, as the others are accumulated first."""
    is_sharded = hasattr(model, "set_requires_gradient_sync")  # FSDP2
    if is_sharded:
        model.set_requires_gradient_sync(last)
    alone = not last and not is_sharded and hasattr(model, "no_sync")  # DistributedDataParallel
    with model.no_sync() if alone else contextlib.nullcontext():
        yield


def _several(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)
