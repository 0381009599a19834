"""Patches as a matrix product: convolutions whose windows touch and do not overlap, as at the head of a vision model.

If the stride of a convolution is its kernel, each pixel is read by one window alone. The result is then one matrix
product of all patches, as rows, with the weight. It is the "linear projection of flattened patches" of
https://arxiv.org/abs/2010.11929, which is mostly written as a convolution. Libraries of convolutions run it as any
other: cuDNN lays the image out again and pads its three channels to eight. And a convolution leaves each feature's
patches side by side, but the model wants each patch's features. With the product, a captured training step of
`zoo:training.relevance_amp@large` is 738 kernels and not 857, as the norms of its blocks are one each. (One H200, torch
2.11, `benchmarks/results/2026-11-23-h200-plan-kernels-relevance-amp.txt`)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchwise.compile.shared_copies import share
from torchwise.errors import UnsupportedError


class _AsProduct(nn.Module):
    """Takes the place of a convolution's class: parameters, attributes and hooks stay, but the forward is another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels, *sizes) to (batch, features, *patches), without the batch if `x` has none.

        A rest at the end of a size, less than a patch, is not read, as by a convolution. The features lie innermost in
        memory, as in a convolution of a `channels_last` input. Most models take the features as rows, and then work on
        rows that are whole. A model that takes a `view` of all of a contiguous answer fails its trial.

        Raises:
            RuntimeError: the input is smaller than a patch.
        """
        sizes: tuple[int, ...] = self.kernel_size  # type: ignore[assignment]
        batched = x if x.dim() == len(sizes) + 2 else x.unsqueeze(0)
        for dim, size in enumerate(sizes, start=2):
            if batched.shape[dim] < size:
                raise RuntimeError(f"the input's sizes are {tuple(batched.shape[2:])}, but a patch is of {sizes}")
            batched = batched.narrow(dim, 0, batched.shape[dim] // size * size)
        for place, size in enumerate(sizes):
            batched = batched.unflatten(2 + 2 * place, (-1, size))
        grid = range(2, batched.dim(), 2)
        patches = batched.permute(0, *grid, 1, *(dim + 1 for dim in grid)).flatten(len(sizes) + 1)
        features = functional.linear(patches, self.weight.flatten(1), self.bias)  # type: ignore[operator, arg-type]
        return features.movedim(-1, 1) if x.dim() == len(sizes) + 2 else features.squeeze(0).movedim(-1, 0)


class _Patches1d(_AsProduct, nn.Conv1d):
    pass


class _Patches2d(_AsProduct, nn.Conv2d):
    pass


class _Patches3d(_AsProduct, nn.Conv3d):
    pass


_FORMS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: _Patches1d, nn.Conv2d: _Patches2d, nn.Conv3d: _Patches3d}


def has_patches(module: nn.Module) -> bool:
    """Whether a module has, or is, a convolution that cuts its input into patches."""
    return any(_cuts_patches(part) for part in module.modules())


def multiply(call: Callable[..., Any]) -> tuple[nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return a copy of a model that shares its parameters and multiplies patches, and an empty layer for around it.

    Raises:
        UnsupportedError: there is no convolution in it that cuts patches, or it cannot be copied.
    """
    if not isinstance(call, nn.Module) or not has_patches(call):
        kind = type(call).__qualname__
        raise UnsupportedError(
            f"transforms has 'patch_matmul', but {kind} has no convolution whose stride is its kernel size"
        )
    model = share(call)
    for part in model.modules():
        if _cuts_patches(part):
            part.__class__ = _FORMS[type(part)]  # the copy's class, which Torchwise created
    return model, lambda inner: inner


def _cuts_patches(module: nn.Module) -> bool:
    """Whether it is a plain convolution whose windows tile its input.

    Kernels of one element are left alone. Those are matrix products already, and Inductor knows.
    """
    if type(module) not in _FORMS or "forward" in vars(module):
        return False
    convolution: Any = module
    size = convolution.kernel_size
    return (
        convolution.stride == size
        and math.prod(size) > 1
        and convolution.padding in ("valid", (0,) * len(size))
        and convolution.groups == 1
        and set(convolution.dilation) == {1}
    )
