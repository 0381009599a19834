"""Copies of a model that share, follow or watch the original's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.realize.glance import STANDARD
from torchwise.realize.watch import ModuleWatch
from torchwise.workload import trees


def share(
    module: torch.nn.Module, derive: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
) -> torch.nn.Module:
    """Copy a module's structure; each parameter and buffer becomes `derive` of the original's, or the original's own.

    Tensors that are plain attributes, or in lists and dicts of them, are the original's own: writes to them are seen.

    Raises:
        UnsupportedError: the module cannot be copied; a plan that changes the model's structure cannot be used then.
    """
    plain = [value for part in module.modules() for name, value in vars(part).items() if name not in STANDARD]
    memo: dict[int, Any] = {id(tensor): tensor for tensor in trees.tensors(plain)}
    memo |= {id(tensor): derive(tensor) for tensor in _tensors(module)}
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:  # a module may hold anything, and its __deepcopy__ may raise anything
        raise UnsupportedError(f"the model cannot be copied ({type(error).__name__}: {error})") from error
    own = {id(part) for part in module.modules()}
    for name, part in copied.named_modules():
        if id(part) in own:  # its __deepcopy__ says so, and what changes the copy would change the user's model
            raise UnsupportedError(f"the model cannot be copied: the copy of {name or 'it'} is the original itself")
    return copied


class DerivedWeights:
    """A copy of a module in another precision or memory format, brought up to date when the original's weights change.

    Raises (on call):
        StalePlanError: the original changed otherwise: submodules, attributes, shapes, training mode.
    """

    def __init__(self, module: torch.nn.Module, plan: Plan) -> None:
        self._original = module
        self._watch = ModuleWatch(module)
        self._versions = _versions_of(self._watch)  # before the copy: what is written meanwhile is copied again
        self.copy = share(module, lambda tensor: _derive(tensor, plan))
        for part in self.copy.modules():
            if isinstance(part, torch.nn.RNNBase):
                part.flatten_parameters()  # into one piece, or cuDNN does so on every call

    def following(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that it first copies changed weights over."""

        def follow(*args: Any, **kwargs: Any) -> Any:
            if self._watch.changed() or self._watch.versions() != self._versions:
                self._refresh()
            return call(*args, **kwargs)

        return follow

    def _refresh(self) -> None:
        if self._watch.restructured():
            raise StalePlanError("the model changed, and not its weights only, since the plan made its copy of it")
        self._versions = []  # until all is copied, no other call may go by what is there
        self._watch.look()
        versions = _versions_of(self._watch)
        with torch.no_grad():
            for source, target in zip(_tensors(self._original), _tensors(self.copy), strict=True):
                if source.shape != target.shape:
                    raise StalePlanError(f"a weight changed shape from {tuple(target.shape)} to {tuple(source.shape)}")
                target.copy_(source)
        for own, copied in zip(self._original.modules(), self.copy.modules(), strict=True):
            vars(copied).update({k: v for k, v in vars(own).items() if isinstance(v, torch.Tensor)})
        self._versions = versions


def guarding(module: torch.nn.Module, call: Callable[..., Any], *, values: bool) -> Callable[..., Any]:
    """Wrap `call`, which holds for `module` as it is now, so that it refuses to answer once that changed.

    Args:
        module: the original.
        call: what was made from it.
        values: whether that holds for the weights' present values only, as where they are frozen into it.

    Raises (on call):
        StalePlanError: it changed.
    """
    watch = ModuleWatch(module)
    versions = _versions_of(watch) if values else []

    def guard(*args: Any, **kwargs: Any) -> Any:
        if watch.changed():
            raise StalePlanError("the model changed since the plan was made for it")
        if values and watch.versions() != versions:
            raise StalePlanError("the weights changed since they were frozen into the plan")
        return call(*args, **kwargs)

    return guard


def _versions_of(watch: ModuleWatch) -> list[int | None]:
    """Count the writes to each tensor.

    Raises:
        UnsupportedError: one was made in inference mode, which keeps no count: new weights would go unnoticed.
    """
    versions = watch.versions()
    if None in versions:
        raise UnsupportedError(
            "a weight was made in inference mode, where PyTorch does not count what is written to it, and the plan "
            "keeps copies of the weights: make the model outside inference mode"
        )
    return versions


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _derive(tensor: torch.Tensor, plan: Plan) -> torch.Tensor:
    # Always memory of its own: a tensor shared with the original would be copied onto itself when it changes.
    derived = tensor.detach().clone()
    if plan.precision == "bf16" and tensor.is_floating_point():
        derived = derived.to(torch.bfloat16)
    if plan.memory_format == "channels_last" and tensor.dim() == 4:
        derived = derived.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(derived, tensor.requires_grad)
    return derived
