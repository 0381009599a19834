"""The parts of a training step: which are refused, the state that a step changes, and how to restore it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchwise.errors import WorkloadError, is_count, is_positive
from torchwise.workload import closure, layouts, pytree
from torchwise.workload.module_state import State
from torchwise.workload.state_places import ItemsPlace

if TYPE_CHECKING:
    from torchwise.workload.train_step import TrainStep


FORM = ("foreach", "fused", "capturable")
"""Options of groups for how an optimizer steps, which no step changes, though a plan does."""
HUNG = {"step", "zero_grad", "add_param_group"}
"""Methods that others, and plans, wrap on the very optimizer."""


def take_snapshot(step: TrainStep) -> Callable[[], None]:
    """Copy the parameters, buffers, optimizer state, schedules, scales, averages and all other state of a step.

    Return a function that restores it, in place, so that addresses in recorded code (a CUDA graph) stay valid. State
    that an optimizer created later is removed. The form of an optimizer stays that of the time of restoring. A plan may
    have changed it, and with it the device of step counts and whether a rate is a tensor. Gradients are not part of it,
    as a step begins by clearing them.
    """
    parameters = [_copy_value(p) for module in step.modules().values() for p in module.parameters()]
    others = _keep_others(step, parameters)
    own = ItemsPlace(vars(step.optimizer), _attributes_to_skip(step.optimizer))
    own.keep()
    states = {p: _copy_value(state) for p, state in step.optimizer.state.items()}
    groups = [
        {k: _copy_value(v) for k, v in group.items() if k not in ("params", *FORM)}
        for group in step.optimizer.param_groups
    ]
    schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler in step.schedulers]
    scale = copy.deepcopy(step.scaler.state_dict()) if step.scaler is not None else None

    def restore() -> None:
        with torch.no_grad():
            for parameter in parameters:
                _put_back(parameter.itself, parameter)
            others.restore()
            if own.has_changed():
                own.put_back()
            for trained in list(step.optimizer.state):
                if trained not in states:
                    del step.optimizer.state[trained]
            for trained, state in states.items():
                step.optimizer.state[trained] = _put_back(step.optimizer.state.get(trained), state)
            for group, kept in zip(step.optimizer.param_groups, groups, strict=True):
                group.update({k: _put_back(group.get(k), v) for k, v in kept.items()})
        for scheduler, saved in zip(step.schedulers, schedules, strict=True):
            scheduler.load_state_dict(copy.deepcopy(saved))
        if step.scaler is not None and scale:
            step.scaler.scale(step.trained()[0].new_ones(1))  # or it has no scale yet that could be set
            step.scaler.update(scale["scale"])  # forgets a step that broke off on its way
            step.scaler.load_state_dict(copy.deepcopy(scale))

    return restore


def _keep_others(step: TrainStep, parameters: list[_Tensor]) -> State:
    """Keep all other state of the step's parts.

    It is in buffers and attributes of modules, in objects that a loss closes over, and in the counts that a custom
    optimizer or scheduler keeps on itself.
    """
    optimizer, known = step.optimizer, _attributes_to_skip(step.optimizer)
    attributes = {name: value for name, value in vars(optimizer).items() if name not in known}
    own = [s for s in step.schedulers if not type(s).__module__.startswith("torch.")]
    usual = [s for s in step.schedulers if type(s).__module__.startswith("torch.")]
    things = {"": list(step.modules().values()), "loss": step.loss, "optimizer": attributes, "scheduler": own}
    excluded = [*(p.itself for p in parameters), optimizer, optimizer.state, optimizer.param_groups]
    return State(things, without=[*excluded, *usual, step.scaler, step])


def move_state(step: TrainStep, device: str) -> None:
    """Move the optimizer's state to `device`. Step counts stay on the device that their optimizer needs."""
    for group in step.optimizer.param_groups:
        counts_there = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            state = step.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if key != "step" or counts_there:
                    state[key] = pytree.map_tensors(lambda t: t.to(device), value)
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                group[key] = value.to(device)


def _attributes_to_skip(optimizer: Any) -> frozenset[str]:
    """Return the names of an optimizer's attributes that are kept in their own way, or belong to a plan or a scaler."""
    hooks = (name for name in vars(optimizer) if name.startswith("_optimizer_"))
    return frozenset({"state", "param_groups", "defaults", "grad_scale", "found_inf", *HUNG, *hooks})


def find_lost_attributes(optimizer: Any) -> dict[str, Any]:
    """Return the attributes that an optimizer has in no copy, as its own way to be copied covers three alone.

    Attributes that `torch.optim` itself makes anew are left out. So are those that schedulers and plans wrap: they
    belong to the original.
    """
    if not hasattr(optimizer, "__getstate__"):
        return {}
    kept = {*optimizer.__getstate__(), *HUNG, *(name for name in vars(optimizer) if name.startswith("_optimizer_"))}
    return {name: value for name, value in vars(optimizer).items() if name not in kept}


def are_hooked(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether a function is hung on one of them: `register_hook`, `register_post_accumulate_grad_hook`."""
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)


@contextlib.contextmanager
def stepping_by(optimizer: torch.optim.Optimizer, update: Callable[[], Any]) -> Iterator[None]:
    """Have the scaler, which calls `optimizer.step`, update otherwise."""
    if update == optimizer.step:
        yield
        return
    own = vars(optimizer)
    before = own.get("step")
    own["step"] = update
    try:
        yield
    finally:
        if before is None:
            del own["step"]
        else:
            own["step"] = before


def forget_scaling(scaler: Any, optimizer: Any) -> None:
    """Have both forget an update that broke off between them: `GradScaler` does so only after one that came through."""
    getattr(scaler, "_per_optimizer_states", {}).pop(id(optimizer), None)
    for name in ("grad_scale", "found_inf"):
        vars(optimizer).pop(name, None)


def convert_tensor_rates(schedule: Any) -> Any:
    """Return a scheduler's state with the learning rates that it last set as numbers, as they are without a plan."""
    if isinstance(schedule, list):
        return [convert_tensor_rates(part) for part in schedule]
    if not isinstance(schedule, dict):
        return schedule
    return {
        key: [float(rate) for rate in value] if key == "_last_lr" else convert_tensor_rates(value)
        for key, value in schedule.items()
    }


@dataclass(frozen=True, slots=True)
class _Tensor:
    itself: torch.Tensor
    values: torch.Tensor


def _copy_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Tensor(value, value.detach().clone())
    if isinstance(value, dict):
        return {key: _copy_value(item) for key, item in value.items()}
    return copy.deepcopy(value)


def _put_back(now: Any, kept: Any) -> Any:
    """Return the kept value, written into the present tensor or dict, as other code may refer to that."""
    if isinstance(kept, _Tensor):
        place = now if isinstance(now, torch.Tensor) and now.shape == kept.values.shape else kept.itself
        return place.copy_(kept.values)
    if isinstance(kept, dict):
        holder = now if isinstance(now, dict) else {}
        for key in holder.keys() - kept.keys():
            del holder[key]
        holder.update({key: _put_back(holder.get(key), item) for key, item in kept.items()})
        return holder
    if isinstance(now, torch.Tensor) and isinstance(kept, (int, float)):  # a rate, which is a number without the plan
        return now.fill_(kept)
    return copy.deepcopy(kept)


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
