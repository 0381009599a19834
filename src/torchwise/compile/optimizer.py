"""A user's optimizer in the form that a plan wants, and back. Its checkpoints stay as the user's own.

All use of private names of optimizers for this sits here. The groups of `torch.optim`'s optimizers determine on every
step which kernels are taken (`foreach`, `fused`). They also determine whether steps are counted where a CUDA graph can
(`capturable`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from torchwise.errors import UnsupportedError
from torchwise.plan import Trait

FORMS: Mapping[str, dict[str, bool]] = {
    "preserve": {},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"fused": True, "foreach": False},
    "compiled": {},
}
"""The settings of a group for each form that a plan may ask for."""
_SCALES = "_step_supports_amp_scaling"
"""Marks an optimizer that a `GradScaler` may leave the skipping to: the fused ones skip without waiting."""
_ADD = "add_param_group"


class TunedOptimizer:
    """Changes the form of an optimizer until `restore`.

    Until then `optimizer.state_dict` returns the original form of the state, which loads without Torchwise. A loaded
    state and added groups take the new form. Several objects may share one optimizer, such as steps with different
    losses that train one model. If their forms differ, the last one decides. The last one to restore restores the
    original form.

    Args:
        optimizer: changed in place.
        form: a key of `FORMS`.
        countable: whether steps must be counted on the device of the parameters, as in a CUDA graph.
        rates: whether learning rates must be tensors, because they change from step to step, but the code that reads
            them is recorded or compiled once.

    Raises:
        UnsupportedError: the optimizer has no such form.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, form: str, *, countable: bool = False, rates: bool = False
    ) -> None:
        if form == "compiled" and isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError("optimizer is 'compiled', but LBFGS calls the model itself: leave optimizer out")
        for flag, request in FORMS[form].items():
            if request and any(flag not in group for group in optimizer.param_groups):
                raise UnsupportedError(
                    f"optimizer is {form!r}, but {type(optimizer).__name__} has no such form: leave optimizer out"
                )
        self._optimizer = optimizer
        self._requests = _Request(FORMS[form], countable, rates)
        if optimizer not in _GIVEN:
            _GIVEN[optimizer] = _OriginalForm(optimizer)
        _GIVEN[optimizer].take(optimizer, self._requests)

    def restore(self) -> None:
        """Give the optimizer its own form back, or the one that others who hold it want."""
        _GIVEN[self._optimizer].leave(self._optimizer, self._requests)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One holder's wishes for an optimizer (see `TunedOptimizer`)."""

    flags: Mapping[str, bool]
    countable: bool
    rates: bool


class _OriginalForm:
    """The form that a user gave an optimizer, kept once for all who hold it in another.

    It keeps no reference to the optimizer but takes it as an argument: else it would keep it alive.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._requests: list[_Request] = []
        self._kept = [_settings(group) for group in optimizer.param_groups]
        self._own = {name: vars(optimizer).get(name) for name in (_SCALES, _ADD)}
        self._hooks = (
            optimizer.register_state_dict_post_hook(self._to_original_form),
            optimizer.register_load_state_dict_post_hook(self._reapply_after_load),
        )
        vars(optimizer)[_ADD] = functools.partial(self._add_group, optimizer, optimizer.add_param_group)

    def take(self, optimizer: torch.optim.Optimizer, request: _Request) -> None:
        """Give the optimizer the requested form, with priority over earlier ones."""
        self._requests.append(request)
        self._apply(optimizer)

    def leave(self, optimizer: torch.optim.Optimizer, request: _Request) -> None:
        """Take back one holder's form. With the last holder, take back all changes."""
        self._requests.remove(request)
        for group, kept in zip(optimizer.param_groups, self._kept, strict=False):
            group.update({**kept, "lr": _rate(group["lr"], kept["lr"])})
            _place_counts(optimizer, group)
        self._give_back(optimizer, _SCALES)
        if self._requests:
            self._apply(optimizer)
            return
        for hook in self._hooks:
            hook.remove()
        self._give_back(optimizer, _ADD)
        del _GIVEN[optimizer]

    def _give_back(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        vars(optimizer).pop(name, None)
        if (own := self._own[name]) is not None:
            vars(optimizer)[name] = own

    def _apply(self, optimizer: torch.optim.Optimizer) -> None:
        for request in self._requests:
            for group in optimizer.param_groups:
                group.update({flag: value for flag, value in request.flags.items() if flag in group})
                if request.countable and "capturable" in group:
                    group["capturable"] = True
                if request.rates and not isinstance(group["lr"], torch.Tensor) and group["params"]:
                    group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
                _place_counts(optimizer, group)
            if request.flags.get("fused"):
                lay_states(optimizer)
            if all(group.get("fused") for group in optimizer.param_groups):  # copies of optimizers forget this mark
                vars(optimizer)[_SCALES] = True
            elif request.flags.get("fused") is False:
                vars(optimizer).pop(_SCALES, None)

    def _add_group(
        self, optimizer: torch.optim.Optimizer, add: Callable[[dict[str, Any]], None], param_group: dict[str, Any]
    ) -> None:
        """Add a group in the form of the others: a scaler leaves the skipping to all of its kernels, or to none."""
        add(param_group)
        self._kept.append(_settings(optimizer.param_groups[-1]))
        self._apply(optimizer)

    def _to_original_form(self, _optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        groups = list(state["param_groups"])
        for place, (group, kept) in enumerate(zip(groups, self._kept, strict=False)):
            groups[place] = {**group, **kept, "lr": _rate(group["lr"], kept["lr"])}
        there = {
            number: bool(group.get("capturable") or group.get("fused"))
            for group in groups
            for number in group["params"]
        }
        states = {number: _move_count(held, there=there.get(number, True)) for number, held in state["state"].items()}
        return {**state, "param_groups": groups, "state": states}

    def _reapply_after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._kept = [_settings(group) for group in optimizer.param_groups]
        self._apply(optimizer)


_GIVEN: WeakKeyDictionary[torch.optim.Optimizer, _OriginalForm] = WeakKeyDictionary()
"""The given form of each optimizer that somebody holds in another form."""


def _place_counts(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Have the steps counted on the device of the parameters if the group says so, else on the CPU."""
    there = bool(group.get("capturable") or group.get("fused"))
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(count := state.get("step"), torch.Tensor):
            state["step"] = count.to(parameter.device if there else "cpu", torch.float32)


def lay_states(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer's state for each parameter that parameter's strides, as fused kernels read both alike.

    The strides differ if the memory format of weights changed, or if a checkpoint with other strides was loaded.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            is_like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_like_it and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: group[name] for name in ("foreach", "fused", "capturable", "lr") if name in group}


def _rate(now: Any, given: Any) -> Any:
    """Return the present learning rate, as a number if the user gave one: the very same one, if it did not change."""
    if isinstance(given, torch.Tensor) or not isinstance(now, torch.Tensor):
        return now
    rate = float(now)
    return given if rate == float(torch.tensor(float(given), dtype=now.dtype)) else rate


def _move_count(state: Any, *, there: bool) -> Any:
    count = state.get("step") if isinstance(state, dict) else None
    return {**state, "step": count.cpu()} if isinstance(count, torch.Tensor) and not there else state


def forms_open(optimizer: torch.optim.Optimizer) -> frozenset[Trait]:
    """Return traits for the other forms that an optimizer could take: fused, foreach."""
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    if not parameters or any(not p.is_floating_point() for p in parameters):
        return frozenset()
    on_cpu = parameters[0].device.type == "cpu"  # on CUDA foreach is PyTorch's own choice by default
    plain = not any(group.get("fused") or group.get("differentiable") for group in groups)
    found = {
        Trait.FUSABLE: plain and all("fused" in group for group in groups),
        Trait.FOREACHABLE: plain
        and all("foreach" in g and (g["foreach"] is False or (on_cpu and not g["foreach"])) for g in groups),
    }
    return frozenset(trait for trait, is_open in found.items() if is_open)
