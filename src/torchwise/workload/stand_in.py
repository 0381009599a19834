"""Tensors in place of recorded ones that are too large to keep: drawn from a seed, with equal statistics.

A stand-in is kept as a tensor without memory (device "meta"), with its statistics as an attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, cast

import torch

from torchwise.workload import pytree
from torchwise.workload.workload import Example

_NAME = "_torchwise_statistics"


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """The statistics that values are drawn by. `is_sorted` holds along the last dimension."""

    device: torch.device
    low: float
    high: float
    mean: complex
    std: float
    is_sorted: bool
    requires_grad: bool

    def to_values(self) -> list[Any]:
        """Return its fields as plain values, for a file."""
        numbers = (self.low, self.high, self.mean.real, self.mean.imag, self.std)
        return [str(self.device), *numbers, self.is_sorted, self.requires_grad]

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """Read the result of `to_values`.

        Raises:
            ValueError: it is no such list.
            RuntimeError: it names no device.
        """
        kinds = (str, *(5 * [float]), bool, bool)
        if not isinstance(values, list) or [*map(type, values)] != [*kinds]:
            raise ValueError("its statistics are no list of a device, five numbers and two truth values")
        device, low, high, real, imaginary, std, is_sorted, requires_grad = values
        return cls(torch.device(device), low, high, complex(real, imaginary), std, is_sorted, requires_grad)


def without_values(example: Example) -> Example:
    """Return the example with a tensor without memory, and with statistics, for each of its tensors."""
    return example.map_tensors(_measure)


def with_values(example: Example, seed: int = 0) -> Example:
    """Return the example with values drawn for each tensor that `without_values` left without memory."""
    generator = torch.Generator().manual_seed(seed)
    return example.map_tensors(lambda tensor: _draw(tensor, generator))


def read_statistics(tensor: torch.Tensor) -> TensorStatistics | None:
    """Return the statistics of a stand-in, or None for any other tensor."""
    return cast("TensorStatistics | None", getattr(tensor, _NAME, None))


def write_statistics(tensor: torch.Tensor, statistics: TensorStatistics) -> None:
    """Make a stand-in of a tensor without memory."""
    vars_of: Any = tensor
    setattr(vars_of, _NAME, statistics)


def _measure(tensor: torch.Tensor) -> torch.Tensor:
    values = pytree.base_of(tensor.detach())
    stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    write_statistics(stand_in, _statistics_of(values, tensor))
    return stand_in


def _statistics_of(values: torch.Tensor, tensor: torch.Tensor) -> TensorStatistics:
    if values.is_complex():
        parts = torch.view_as_real(values.resolve_conj())
        mean = complex(values.mean().item())
        return TensorStatistics(tensor.device, 0.0, 0.0, mean, float(parts.std()), False, tensor.requires_grad)
    wide = values if values.dtype in (torch.float32, torch.float64, torch.int64) else values.to(torch.float32)
    low, high = (float(found) for found in wide.aminmax())
    is_integer = not values.is_floating_point()
    is_sorted = is_integer and values.dim() > 0 and bool((wide.diff(dim=-1) >= 0).all()) and low < high
    real = wide.to(torch.float64 if is_integer else wide.dtype)
    std = float(real.std()) if values.numel() > 1 else 0.0
    return TensorStatistics(tensor.device, low, high, float(real.mean()), std, is_sorted, tensor.requires_grad)


def _draw(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    found = read_statistics(tensor)
    if found is None:
        return tensor
    shape, dtype = tensor.shape, tensor.dtype
    if dtype is torch.bool:
        values = torch.rand(shape, generator=generator) < found.mean.real
    elif dtype.is_complex:
        values = torch.randn(shape, dtype=dtype, generator=generator) * found.std + found.mean
    elif dtype.is_floating_point:
        values = torch.randn(shape, generator=generator) * found.std + found.mean.real
        values = values.clamp(found.low, found.high)
    else:
        values = torch.randint(int(found.low), int(found.high) + 1, shape, generator=generator)
        values = values.sort(dim=-1).values if found.is_sorted else values
    drawn = torch.empty_strided(shape, tensor.stride(), dtype=dtype, device=found.device)
    pytree.write(drawn, values.to(dtype).to(found.device))
    return drawn.requires_grad_(found.requires_grad)
