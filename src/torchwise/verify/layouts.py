"""The ways in which the values of an input may lie in memory: kernels often expect one of them."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.verify.other_values import is_plain
from torchwise.verify.value_edges import Fill


def describe_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return all in which the layouts of a tensor's values can differ: strides, offset, and lazy conjugation."""
    return tensor.stride(), tensor.storage_offset(), tensor.is_conj()


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values with a gap behind each, as a slice with a step has."""
    if not is_plain(tensor):
        return tensor
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 1, dtype=tensor.dtype, device=tensor.device)
    view = wide[..., ::2]
    return view.copy_(tensor)


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    if not is_plain(tensor) or tensor.dim() < 2:
        return tensor
    return tensor.mT.contiguous().mT


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return images or volumes with their channels innermost, for which kernels often have code of its own."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if not is_plain(tensor) or tensor.dim() not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.dim()])


def _conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex values whose memory holds the conjugates, as `Tensor.conj` marks them and writes nothing."""
    return tensor.conj().resolve_conj().conj() if is_plain(tensor) and tensor.is_complex() else tensor


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values from the second place of their storage on, where wide loads are not aligned."""
    if not is_plain(tensor):
        return tensor
    wide = torch.ones(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return wide[1:].view(tensor.shape).copy_(tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first slice in place of all along the first dimension, as broadcasting does."""
    if not is_plain(tensor) or tensor.shape[0] < 2:
        return tensor
    return tensor[:1].clone().expand(tensor.shape)


def _overlapping(tensor: torch.Tensor) -> torch.Tensor:
    """Return windows that share memory, as `Tensor.unfold` gives them."""
    if not is_plain(tensor) or tensor.dim() != 2 or min(tensor.shape) < 2:
        return tensor
    rows, columns = tensor.shape
    line = tensor.flatten()[: rows + columns - 1].clone()
    return line.as_strided((rows, columns), (1, 1))


IN_ROWS: tuple[tuple[str, Fill], ...] = (("inputs at an odd offset", _shifted),)
"""Layouts of inputs that are always contiguous."""
VALUES_KEPT: tuple[tuple[str, Fill], ...] = (
    ("strided inputs", _strided),
    ("transposed inputs", _transposed),
    ("channels last", _channels_last),
    ("conjugated inputs", _conjugated),
    *IN_ROWS,
)
"""Layouts in which all values stay as they are, as inputs may have a structure."""
LAYOUTS: tuple[tuple[str, Fill], ...] = (
    *VALUES_KEPT,
    ("expanded inputs", _expanded),
    ("overlapping windows", _overlapping),
)
"""Those of any inputs. Expanding and overlapping change values."""
