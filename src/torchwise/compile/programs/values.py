"""Tensors of a region while its code is made: memory, views of it, and numbers that no memory holds yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

Shape = tuple[int, ...]
C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
"""The types of numbers that regions compute with, as C++ names them."""


@dataclass(eq=False)
class Buffer:
    """Memory: an input, an output, or a part of the workspace.

    Attributes:
        name: in the code.
        dtype: of its numbers.
        shape: its sizes.
        strides: in numbers.
        kind: whose memory it is.
        ready: the number of the kernel that writes it last, or -1 for an input.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    kind: Literal["input", "output", "work"]
    ready: int = -1

    @property
    def span(self) -> int:
        """The number of elements from its first to its last."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class View:
    """A part of a buffer, with strides."""

    buffer: Buffer
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return self.buffer.dtype

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers lie in order and without gaps."""
        return all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its buffer, as that lies."""
        return self.offset == 0 and self.shape == self.buffer.shape and self.strides == self.buffer.strides

    def expand(self, shape: Shape) -> View:
        """Return it broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        own = zip(self.shape, self.strides, shape[missing:], strict=True)
        strides = (*[0] * missing, *(0 if size == 1 != wanted else stride for size, stride, wanted in own))
        return View(self.buffer, shape, strides, self.offset)

    def pointer(self) -> str:
        """Return the address of its first number, in the code."""
        return f"{self.buffer.name} + {self.offset}" if self.offset else self.buffer.name


@dataclass(eq=False)
class Value:
    """A tensor: in memory, or a number at each point of a loop, or the same number everywhere.

    Attributes:
        shape: its sizes.
        dtype: of its numbers.
        view: where it lies in memory, if it does.
        loop: the number of the loop that computes it.
        name: of the variable in that loop.
        constant: the number that it is everywhere.
    """

    shape: Shape
    dtype: torch.dtype
    view: View | None = None
    loop: int | None = None
    name: str = ""
    constant: bool | int | float | None = None
    parts: tuple[Value, ...] = field(default=())


def row_major(shape: Sequence[int]) -> Shape:
    """Return the strides of a tensor whose numbers lie in order and without gaps."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def write_number(value: float, dtype: torch.dtype) -> str:
    """Return a number as C++ writes it."""
    kind = C_TYPES[dtype]
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        whole = int(value)
        return f"({kind}){whole}LL" if whole > -(2**63) else "INT64_MIN"
    return write_fraction(value, kind)


def write_fraction(value: float, kind: str) -> str:
    """Return a floating-point number as C++ writes it."""
    value = float(value)
    if math.isnan(value):
        return f'({kind})__builtin_nan("")'
    if math.isinf(value):
        return f"({kind}){'-' if value < 0 else ''}__builtin_inf()"
    return f"({kind}){value!r}"
