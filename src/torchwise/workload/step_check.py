"""Refuse arguments that make no training step.

Also here: the loss that stands in for a training workload's own: every floating output enters, smoothly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from torchwise.errors import WorkloadError, is_count, is_positive
from torchwise.workload import closure, layouts, pytree

if TYPE_CHECKING:
    from torchwise.workload.train_step import TrainStep


def check(step: TrainStep) -> None:
    """Check the arguments of a training step.

    Raises:
        WorkloadError: an argument is invalid.
    """
    if not isinstance(step.model, torch.nn.Module):
        raise WorkloadError(f"model is of type {type(step.model).__name__}, but must be a torch.nn.Module")
    if step.loss is not None and not callable(step.loss):
        raise WorkloadError(f"loss is {step.loss!r}, but must be a function of the outputs and the targets, or None")
    if isinstance(step.loss, type):
        name = step.loss.__name__
        raise WorkloadError(f"loss is the class {name}, but must be a function or an instance: {name}()")
    if not hasattr(step.optimizer, "param_groups"):
        raise WorkloadError(
            f"optimizer is of type {type(step.optimizer).__name__}, but must be a torch.optim.Optimizer"
        )
    if step.scaler is not None and not hasattr(step.scaler, "unscale_"):
        raise WorkloadError(
            f"scaler is of type {type(step.scaler).__name__}, but must be a torch.amp.GradScaler or None"
        )
    if step.ema is not None and not hasattr(step.ema, "update_parameters"):
        raise WorkloadError(
            f"ema is of type {type(step.ema).__name__}, but must be a torch.optim.swa_utils.AveragedModel or None"
        )
    if step.scaler is not None and isinstance(step.optimizer, torch.optim.LBFGS):
        raise WorkloadError(
            "scaler is given, but LBFGS computes several gradients a step, which no scaler supports: leave it out"
        )
    if step.autocast not in (None, torch.bfloat16, torch.float16):
        raise WorkloadError(f"autocast is {step.autocast!r}, but must be torch.bfloat16, torch.float16 or None")
    if not is_count(step.accumulate):
        raise WorkloadError(f"accumulate is {step.accumulate!r}, but must be a whole number of at least 1")
    for name in ("clip_norm", "clip_value"):
        value = getattr(step, name)
        if value is not None and not is_positive(value):
            raise WorkloadError(f"{name} is {value!r}, but must be above 0, or None")
    for scheduler in step.schedulers:
        if not hasattr(scheduler, "step") or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise WorkloadError(
                f"scheduler is of type {type(scheduler).__name__}, but its step() must need no arguments: leave it "
                "out, and step it in your own loop"
            )
        if not (hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict")):
            raise WorkloadError(
                f"scheduler is of type {type(scheduler).__name__}, but must have state_dict and load_state_dict, to be "
                "copied and restored: derive it from torch.optim.lr_scheduler.LRScheduler, or step it in your own loop"
            )
    _check_parameters(step)


def check_inputs(batch: tuple[Any, ...]) -> None:
    """Refuse a mapping for the model if its tensors cannot be found, as it could not be split with the batch.

    Raises:
        WorkloadError: the inputs are such a mapping.
    """
    if batch and isinstance(batch[0], Mapping) and pytree.is_leaf(batch[0]):
        raise WorkloadError(
            f"the inputs are a mapping of type {type(batch[0]).__name__}, in which tensors can be neither found nor "
            "split: pass dict(inputs)"
        )


def check_loss(step: TrainStep) -> None:
    """Refuse a loss that reads the model by a global name, as a copy of the step would then read the original.

    Raises:
        WorkloadError: the loss reads a part of the step by a global name.
    """
    parts = {id(part) for module in step.modules().values() for part in (*module.modules(), *module.parameters())}
    for function in closure.functions_of(step.loss):
        for name, value in closure.globals_of(function).items():
            if id(value) in parts:
                raise WorkloadError(
                    f"the loss reads the model by the global name {name!r}, so the loss of a copy would read the "
                    f"original's weights: bind it, as in functools.partial(loss, {name}={name})"
                )


def _check_parameters(step: TrainStep) -> None:
    if not step.trained():
        raise WorkloadError("the optimizer trains no parameters: create it with the parameters of the model")
    known = {
        id(p) for module in (step.model, step.loss) if isinstance(module, torch.nn.Module) for p in module.parameters()
    }
    if unknown := [p for p in step.trained() if id(p) not in known]:
        raise WorkloadError(
            f"the optimizer trains {len(unknown)} parameters that are in neither the model nor the loss: create it "
            "with the parameters of this model, after moving and wrapping the model"
        )


def loss_of(outputs: Any) -> torch.Tensor | None:
    """Return the sum over floating outputs of their mean square, or None if no output depends on a parameter.

    A lone scalar output counts as a loss already and is returned as it is.
    """
    parts = [part for t in pytree.tensors(outputs) if t.requires_grad for _, part in layouts.list_strided_parts(t)]
    found = [part for part in parts if part.requires_grad]
    if len(found) == 1 and found[0].dim() == 0 and found[0].is_floating_point():
        return found[0]
    terms = [(t.abs() if t.is_complex() else t).square().mean() for t in found]
    return torch.stack([term.double() for term in terms]).sum() if terms else None
