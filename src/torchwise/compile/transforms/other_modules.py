"""Operators replaced by others: instance norms by group norms, GELU by its approximation, and dropout by nothing.

A copy of the model that shares its parameters has modules of other classes, with the same attributes and hooks. If its
code calls the functions of `torch.nn.functional` by itself, the copy calls others (`swapped_functions`).

- An instance norm is a group norm with a group for each channel. PyTorch runs it as a batch norm of a reshaped input,
  whose weights it repeats for each sample. The group norm has a kernel of its own.
- The approximation of GELU by tanh (https://arxiv.org/abs/1606.08415) is off by up to 5e-4.
- Dropout that is on in inference draws noise on purpose, which not every use of a model needs. Each answer then differs
  from its noisy one by that noise. So a metric judges it better than an error. Dropout that is part of another
  operator of PyTorch stays: in `nn.MultiheadAttention`, and between the layers of an `nn.LSTM`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchwise.compile.shared_copies import share
from torchwise.compile.transforms.swapped_functions import (
    Swap,
    TanhGelu,
    WithGroupNorm,
    WithoutDropout,
    calls_some_of,
    can_replace_forward,
    leave_out,
)
from torchwise.compile.transforms.swapped_functions import swap as swap_functions
from torchwise.errors import UnsupportedError

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]


class _AsGroupNorm(nn.Module):
    """Takes the place of an instance norm's class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize (batch, channels, *sizes), or (channels, *sizes) without a batch."""
        norm: Any = self
        batched = x if x.dim() != _DIMS_WITHOUT_BATCH[type(self)] else x.unsqueeze(0)
        if math.prod(batched.shape[2:]) == 1 or batched.shape[1] != norm.num_features:
            forward: Callable[..., torch.Tensor] = type(self).__mro__[2].forward  # type: ignore[attr-defined]
            return forward(self, x)  # which refuses such an input in its own words
        result = functional.group_norm(batched, norm.num_features, norm.weight, norm.bias, norm.eps)
        return result if batched is x else result.squeeze(0)


class _Norm1d(_AsGroupNorm, nn.InstanceNorm1d):
    pass


class _Norm2d(_AsGroupNorm, nn.InstanceNorm2d):
    pass


class _Norm3d(_AsGroupNorm, nn.InstanceNorm3d):
    pass


class _TanhGelu(nn.GELU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return x · Φ(x), with Φ by tanh."""
        return functional.gelu(input, approximate="tanh")


def _leave_out(module: nn.Module, input: torch.Tensor) -> torch.Tensor:
    dropout: Any = module
    never_inplace = isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout))
    return leave_out(input, dropout.p, dropout.training, dropout.inplace and not never_inplace)


_DIMS_WITHOUT_BATCH: dict[type, int] = {_Norm1d: 2, _Norm2d: 3, _Norm3d: 4}
_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.InstanceNorm1d: _Norm1d,
    nn.InstanceNorm2d: _Norm2d,
    nn.InstanceNorm3d: _Norm3d,
}
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITHOUT_NOISE: dict[type[nn.Module], type[nn.Module]] = {
    kind: type(f"_No{kind.__name__}", (kind,), {"forward": _leave_out}) for kind in _DROPOUTS
}
globals().update({cls.__name__: cls for cls in _WITHOUT_NOISE.values()})  # by which pickle finds them


def has_instance_norm(model: Any) -> bool:
    """Whether a model has, or is, an instance norm without running statistics."""
    return any(map(_is_instance_norm, _list_parts(model)))


def has_exact_gelu(model: Any) -> bool:
    """Whether a model has, or is, a GELU by the error function."""
    return any(map(_is_exact_gelu, _list_parts(model)))


def has_dropout(model: Any) -> bool:
    """Whether a model has, or is, a module of dropout that is on."""
    return any(map(_is_dropout_on, _list_parts(model)))


def use_group_norm(call: Callable[..., Any]) -> tuple[nn.Module, Layer]:
    """Return a copy of a model whose instance norms are group norms, and an empty layer for around it.

    Raises:
        UnsupportedError: it has none, or it cannot be copied.
    """
    what = "instance norm without running statistics"
    return _replace(call, "group_norm", what, _is_instance_norm, _NORMS, WithGroupNorm)


def use_tanh_gelu(call: Callable[..., Any]) -> tuple[nn.Module, Layer]:
    """Return a copy of a model whose GELU is approximated by tanh, and an empty layer for around it.

    Raises:
        UnsupportedError: it has none, or it cannot be copied.
    """
    what = "nn.GELU by the error function"
    return _replace(call, "tanh_gelu", what, _is_exact_gelu, {nn.GELU: _TanhGelu}, TanhGelu)


def leave_dropout_out(call: Callable[..., Any]) -> tuple[nn.Module, Layer]:
    """Return a copy of a model whose dropout changes nothing, and an empty layer for around it.

    Raises:
        UnsupportedError: it has none that is on, or it cannot be copied.
    """
    what = "module of dropout that is on"
    return _replace(call, "no_dropout", what, _is_dropout_on, _WITHOUT_NOISE, WithoutDropout)


def _replace(
    call: Callable[..., Any],
    name: str,
    what: str,
    is_replaced: Callable[[nn.Module], bool],
    classes: dict[type[nn.Module], type[nn.Module]],
    mode: Swap,
) -> tuple[nn.Module, Layer]:
    has_calls = isinstance(call, nn.Module) and can_replace_forward(call) and calls_some_of(call, mode.FUNCTIONS)
    if not isinstance(call, nn.Module) or not (has_calls or any(map(is_replaced, call.modules()))):
        kind = type(call).__qualname__
        raise UnsupportedError(
            f"transforms has {name!r}, but {kind} has no {what}, and its code calls no such function, or calls it "
            "where it cannot be replaced"
        )
    model = share(call)
    for part in model.modules():
        if is_replaced(part):
            part.__class__ = classes[type(part)]  # the copy's class, which Torchwise created
    return swap_functions(model, mode) if has_calls else model, lambda inner: inner


def _list_parts(model: Any) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []


def _is_instance_norm(module: nn.Module) -> bool:
    plain = type(module) in _NORMS and "forward" not in vars(module)
    return plain and module.running_mean is None


def _is_exact_gelu(module: nn.Module) -> bool:
    plain = type(module) is nn.GELU and "forward" not in vars(module)
    return plain and module.approximate == "none"


def _is_dropout_on(module: nn.Module) -> bool:
    if type(module) not in _WITHOUT_NOISE or "forward" in vars(module):
        return False
    dropout: Any = module
    return bool(dropout.training and dropout.p > 0)
