"""Copies of a model that share, follow or watch the original's weights.

Identity and version of each tensor are read (`Tensor._version` counts in-place writes, so `load_state_dict` and
optimisers are seen). A write through `tensor.data` is invisible to PyTorch's own counter, and so to this.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan

if TYPE_CHECKING:
    import torch


def share(
    module: torch.nn.Module, derive: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
) -> torch.nn.Module:
    """Copy a module's structure; each parameter and buffer becomes `derive` of the original's, or the original's own.

    Raises:
        UnsupportedError: the module cannot be copied; a plan that changes the model's structure cannot be used then.
    """
    tensors = [*module.parameters(), *module.buffers()]
    try:
        return copy.deepcopy(module, {id(tensor): derive(tensor) for tensor in tensors})
    except Exception as error:  # a module may hold anything, and its __deepcopy__ may raise anything
        raise UnsupportedError(f"the model cannot be copied ({type(error).__name__}: {error})") from error


class DerivedWeights:
    """A copy of a module in another precision or memory format, brought up to date when the original changes."""

    def __init__(self, module: torch.nn.Module, plan: Plan) -> None:
        self._original = module
        self.copy = share(module, lambda tensor: _derive(tensor, plan))
        self._watch = WeightsWatch(module)

    def following(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that it first copies changed weights over."""

        def follow(*args: Any, **kwargs: Any) -> Any:
            if self._watch.changed():
                self._refresh()
            return call(*args, **kwargs)

        return follow

    def _refresh(self) -> None:
        import torch

        pairs = zip(_tensors(self._original), _tensors(self.copy), strict=True)
        with torch.no_grad():
            for source, target in pairs:
                if source.shape != target.shape:
                    raise StalePlanError(f"a weight changed shape from {tuple(target.shape)} to {tuple(source.shape)}")
                target.copy_(source)
        self._watch = WeightsWatch(self._original)


class WeightsWatch:
    """Tells whether any weight of a module was written or replaced since this was made."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._seen = self._state()

    def _state(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), version_of(tensor)) for tensor in _tensors(self._module)]

    def changed(self) -> bool:
        """Whether any weight differs in place or version from when this was made."""
        return self._state() != self._seen

    def guarding(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call`, into which weights are frozen, so that it refuses to answer once they changed."""

        def guard(*args: Any, **kwargs: Any) -> Any:
            if self.changed():
                raise StalePlanError("the weights changed since they were frozen into the plan")
            return call(*args, **kwargs)

        return guard


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def version_of(tensor: torch.Tensor) -> int:
    """Return PyTorch's count of in-place writes; 0 for tensors made in inference mode, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def _derive(tensor: torch.Tensor, plan: Plan) -> torch.Tensor:
    import torch

    # Always memory of its own: a tensor shared with the original would be copied onto itself when it changes.
    derived = tensor.detach().clone()
    if plan.precision == "bf16" and tensor.is_floating_point():
        derived = derived.to(torch.bfloat16)
    if plan.memory_format == "channels_last" and tensor.dim() == 4:
        derived = derived.contiguous(memory_format=torch.channels_last)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(derived, tensor.requires_grad)
    return derived
