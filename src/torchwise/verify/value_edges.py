"""Edges of values: those at which kernels overflow, divide by zero, lose a sign, or pick another of equal values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchwise.verify.input_description import TensorInput

LARGE = {"float16": 1e3, "bfloat16": 1e15, "float32": 1e15, "float64": 1e120, "complex64": 1e15, "complex128": 1e120}
"""Large magnitudes, whose squares overflow in half of the dtypes."""

LARGE_VALUES = "large magnitude"
"""The name of this edge."""

Fill = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ValueEdge:
    """A kind of special values: `fill_of` returns how to fill an input, or None if the input cannot hold them."""

    name: str
    fill_of: Callable[[TensorInput], Fill | None]


def _constant(value: float) -> Callable[[TensorInput], Fill | None]:
    def fill_of(one: TensorInput) -> Fill | None:
        low, high = one.low, one.high
        if one.structure or (low is not None and high is not None and not low <= value <= high):
            return None
        return lambda tensor: torch.full_like(tensor, value)

    return fill_of


def _bound(pick: Callable[[float, float], float]) -> Callable[[TensorInput], Fill | None]:
    def fill_of(one: TensorInput) -> Fill | None:
        if one.structure or one.low is None or one.high is None:
            return None
        low, high = one.low, one.high
        return lambda tensor: torch.full_like(tensor, pick(low, high))

    return fill_of


def _free(fill: Callable[[torch.Tensor, TensorInput], torch.Tensor]) -> Callable[[TensorInput], Fill | None]:
    """Return fills for floating inputs whose values have neither a range nor a structure."""

    def fill_of(one: TensorInput) -> Fill | None:
        is_free = one.low is None and not one.structure and one.dtype.startswith(("float", "bfloat", "complex"))
        return (lambda tensor: fill(tensor, one)) if is_free else None

    return fill_of


def _sprinkle(*values: float) -> Callable[[torch.Tensor, TensorInput], torch.Tensor]:
    """Return a fill that puts a few special values among the others: at the last place too, where tiles end."""

    def fill(tensor: torch.Tensor, _one: TensorInput) -> torch.Tensor:
        flat = tensor.clone().flatten()
        for number, value in enumerate(values):
            flat[number :: max(len(values) * 11, 1)] = value
        if flat.numel():
            flat[-1] = values[-1]
        return flat.view(tensor.shape)

    return fill


def _repeat_values(one: TensorInput) -> Fill | None:
    if one.structure not in ("", "sorted") or one.dtype == "bool":
        return None

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.numel() == 0:
            return tensor
        places = torch.arange(tensor.shape[-1]) // 4 * 4
        return tensor[..., places]

    return fill


def _sort_values(tensor: torch.Tensor, _one: TensorInput) -> torch.Tensor:
    return tensor if tensor.is_complex() or tensor.dim() == 0 else tensor.sort(dim=-1, descending=True).values


@dataclass(frozen=True, slots=True)
class SimpleEdge:
    """A kind of special values for a tensor of which only its values are known."""

    name: str
    fill: Fill


def list_simple_edges() -> list[SimpleEdge]:
    """Return the edges of values to note for inputs that an example gives."""
    any_input = TensorInput("", "float32", ())
    kinds = {edge.name: edge.fill_of(any_input) for edge in VALUE_EDGES}
    wanted = ("zeros", "duplicates", "negative values", "an offset")
    found = [SimpleEdge(name, fill) for name in wanted if (fill := kinds[name]) is not None]
    return [*found, SimpleEdge("values 1000 times as large", lambda tensor: tensor * 1000)]


VALUE_EDGES = (
    ValueEdge("zeros", _constant(0.0)),
    ValueEdge("ones", _constant(1.0)),
    ValueEdge("the least value", _bound(lambda low, _: low)),
    ValueEdge("the largest value", _bound(lambda _, high: high)),
    ValueEdge("duplicates", _repeat_values),
    ValueEdge("falling values", _free(_sort_values)),
    ValueEdge("negative values", _free(lambda t, _: (-t.abs()).to(t.dtype))),  # of complex ones, too
    ValueEdge("an offset", _free(lambda t, _: t + 100)),
    ValueEdge(LARGE_VALUES, _free(lambda t, one: t * LARGE[one.dtype])),
    ValueEdge("small magnitude", _free(lambda t, _: t * math.sqrt(torch.finfo(t.dtype).eps) / 16)),
    ValueEdge("denormal numbers", _free(lambda t, _: t * torch.finfo(t.dtype).tiny * 0.1)),
    ValueEdge("negative zeros", _free(_sprinkle(-0.0, 0.0))),
    ValueEdge("infinities", _free(_sprinkle(torch.inf, -torch.inf))),
    ValueEdge("NaN", _free(_sprinkle(torch.nan))),
)
