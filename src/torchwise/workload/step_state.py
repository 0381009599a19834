"""All that a training step changes: where it lies, and how to put it back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torchwise.workload import trees

if TYPE_CHECKING:
    import torch

    from torchwise.workload.step import TrainStep


class StepState:
    """The parameters, buffers, optimizer state, schedules, scales and averages of a training step.

    What is copied and put back: values in place, so that whoever knows a tensor's address (a CUDA graph) still does;
    state that an optimizer made since is forgotten. Gradients are not part of it: a step begins by clearing them.
    """

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def snapshot(self) -> Callable[[], None]:
        """Copy it; return what puts it back."""
        import torch

        step = self._step
        tensors = list(self._tensors())
        values = [t.detach().clone() for t in tensors]
        states = {p: _shell(state) for p, state in step.optimizer.state.items()}
        groups = [{k: _shell(v) for k, v in group.items() if k != "params"} for group in step.optimizer.param_groups]
        schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler in step.schedulers]
        scale = copy.deepcopy(step.scaler.state_dict()) if step.scaler is not None else None

        def restore() -> None:
            with torch.no_grad():
                for tensor, value in zip(tensors, values, strict=True):
                    tensor.copy_(value)
            for parameter in list(step.optimizer.state):
                if parameter not in states:
                    del step.optimizer.state[parameter]
            for parameter, state in states.items():
                _fill(step.optimizer.state[parameter], state)
            for group, kept in zip(step.optimizer.param_groups, groups, strict=True):
                group.update({k: _shell(v) for k, v in kept.items()})
            for scheduler, saved in zip(step.schedulers, schedules, strict=True):
                scheduler.load_state_dict(copy.deepcopy(saved))
            if step.scaler is not None and scale:
                step.scaler.scale(step.trained()[0].new_ones(1))  # or it has no scale yet that could be set
                step.scaler.update(scale["scale"])  # forgets a step that broke off on its way
                step.scaler.load_state_dict(copy.deepcopy(scale))

        return restore

    def move_to(self, device: str) -> None:
        """Move what the optimizer keeps to `device`; step counts stay where their optimizer wants them."""
        import torch

        for group in self._step.optimizer.param_groups:
            counts_there = bool(group.get("capturable") or group.get("fused"))
            for parameter in group["params"]:
                state = self._step.optimizer.state.get(parameter, {})
                for key, value in state.items():
                    if key != "step" or counts_there:
                        state[key] = trees.map_tensors(lambda t: t.to(device), value)
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    group[key] = value.to(device)

    def _tensors(self) -> Iterator[torch.Tensor]:
        import torch

        for module in self._step.modules().values():
            yield from module.parameters()
            yield from module.buffers()
        for holder in (*self._step.optimizer.state.values(), *self._step.optimizer.param_groups):
            yield from (v for v in holder.values() if isinstance(v, torch.Tensor))


def lost_attributes(optimizer: Any) -> dict[str, Any]:
    """Return the attributes that an optimizer has in no copy: its own way to be copied knows of three alone.

    Left out are what `torch.optim` itself makes anew, and functions hung on it, which belong to the original.
    """
    if not hasattr(optimizer, "__getstate__"):
        return {}
    kept = {*optimizer.__getstate__(), *(name for name in vars(optimizer) if name.startswith("_optimizer_"))}
    return {name: value for name, value in vars(optimizer).items() if name not in kept and not callable(value)}


def without_tensor_rates(schedule: Any) -> Any:
    """Return a scheduler's state with the learning rates that it last set as numbers, as they are where no plan is."""
    if isinstance(schedule, list):
        return [without_tensor_rates(part) for part in schedule]
    if not isinstance(schedule, dict):
        return schedule
    return {
        key: [float(rate) for rate in value] if key == "_last_lr" else without_tensor_rates(value)
        for key, value in schedule.items()
    }


def _fill(holder: dict[Any, Any], kept: dict[Any, Any]) -> None:
    """Give a dict, which somebody may watch, its earlier content."""
    for key in holder.keys() - kept.keys():
        del holder[key]
    holder.update(_shell(kept))


def _shell(value: Any) -> Any:
    """Copy what holds numbers, and keep the tensors in it, whose values are copied apart."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        return {key: _shell(item) for key, item in value.items()}
    return copy.deepcopy(value)
