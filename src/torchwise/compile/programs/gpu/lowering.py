"""Work on single numbers as text of Triton, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.programs.gpu import expressions
from torchwise.compile.programs.gpu.axes import Axis, Dims
from torchwise.compile.programs.gpu.expressions import write_number
from torchwise.compile.programs.gpu.tiles import TYPES, Point, Tile, Tiles, Value
from torchwise.compile.programs.lowering import dtype_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


class Lowering:
    """Writes the operators of a region.

    Args:
        tiles: the text.
        uses_dot: whether products are made by the processors of matrices.
    """

    def __init__(self, tiles: Tiles, uses_dot: bool) -> None:
        self.tiles, self.uses_dot = tiles, uses_dot

    def to_registers(self, value: Value) -> Value:
        """Return a value whose tiles are loaded."""
        if value.view is None:
            return value
        result = Value(value.dims, value.dtype, features=self.features(value))
        for point in self.tiles.points(result.features):
            result.tiles[key_of(point)] = self.tiles.tile(value, point)
        return result

    def pointwise(
        self, node: Node, dims: Dims, operands: Sequence[Any], write: expressions.Write, within: torch.dtype
    ) -> Value:
        """Write an expression for each tile, whose operands are cast to a type."""
        dtype, tiles = dtype_of(node), self.tiles
        check_type(dtype)
        within = torch.float32 if within in (torch.float16, torch.bfloat16) else within
        tensors = [one for one in operands if isinstance(one, Value)]
        varying = [one for one in tensors if one.constant is None]
        if not varying:
            return self.fold(dims, dtype, operands, write, within)
        features = tuple(sorted({axis for one in varying for axis in self.features(one)}))
        result = Value(dims, dtype, features=features)
        for point in tiles.points(features):
            own = [tiles.tile(one, point) if one in varying else one for one in operands]
            parts = [one for one in own if isinstance(one, Tile)]
            has_rows = any(one.has_rows for one in parts)
            wide = tuple(sorted({s for one in parts for s in one.wide}, key=lambda s: s.axis))
            if len(wide) > 2:
                raise UnsupportedError("a tile would have more than two wide dimensions")
            texts = [
                write_cast(tiles.align(one, has_rows, wide), one.dtype, within)
                if isinstance(one, Tile)
                else _write_constant(one, within)
                if isinstance(one, Value)
                else _write_operand(one, within)
                for one in own
            ]
            text = write([str(one) for one in texts], TYPES[within])
            made = torch.bool if dtype is torch.bool else within
            result.tiles[key_of(point)] = tiles.let(write_cast(text, made, dtype), dtype, has_rows, wide)
        return result

    def fold(
        self, dims: Dims, dtype: torch.dtype, operands: Sequence[Any], write: expressions.Write, within: torch.dtype
    ) -> Value:
        """Compute with numbers that are the same everywhere, as one tile."""
        kind = TYPES[within]
        texts = [
            write_cast(f"tl.full([], {one.constant}, {TYPES[one.dtype]})", one.dtype, within)
            if isinstance(one, Value)
            else f"tl.full([], {_write_operand(one, within)}, {kind})"
            for one in operands
        ]
        result = Value(dims, dtype)
        result.tiles[()] = self.tiles.let(f"({write(texts, kind)}).to({TYPES[dtype]})", dtype, False, ())
        return result

    def features(self, value: Value) -> tuple[Axis, ...]:
        """Return the axes of features along which a value's numbers differ."""
        return self.tiles.axes.list_features(value.dims) if value.view is not None else value.features

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Return a value in another type."""
        if value.dtype is dtype:
            return value
        result = Value(value.dims, dtype, features=value.features)
        for key, tile in value.tiles.items():
            text = write_cast(tile.name, tile.dtype, dtype)
            result.tiles[key] = self.tiles.let(text, dtype, tile.has_rows, tile.wide)
        return result


def _write_operand(operand: Any, within: torch.dtype) -> str:
    """Return a number, or the text of one that differs in each repetition of a loop."""
    return f"{operand}.to({TYPES[within]})" if isinstance(operand, str) else write_number(operand, TYPES[within])


def _write_constant(value: Value, within: torch.dtype) -> str:
    """Return the number that a value is everywhere, in another type."""
    if value.dtype is within:
        return str(value.constant)
    text = value.constant if within is torch.bool else f"tl.full([], {value.constant}, {TYPES[value.dtype]})"
    return write_cast(str(text), value.dtype, within)


def relabel(value: Value, dims: Dims) -> Value:
    """Return a value with other dimensions of the same axes."""
    return Value(dims, value.dtype, value.view, value.step, value.constant, value.features, value.tiles)


def key_of(point: Point) -> tuple[int, ...]:
    """Return the numbers of a point's segments, by which tiles are found."""
    return tuple(point[axis].number for axis in sorted(point))


def write_cast(text: str, source: torch.dtype, to: torch.dtype) -> str:
    """Return a number as one of another type."""
    if source is to:
        return text
    if to in (torch.float16, torch.bfloat16) and source is not torch.float32:  # as PyTorch does
        text = f"({text}).to(tl.float32)"
    return f"({text} != 0)" if to is torch.bool else f"({text}).to({TYPES[to]})"


def check_type(dtype: torch.dtype) -> None:
    """Refuse a type that tiles do not have.

    Raises:
        UnsupportedError: it is such a type.
    """
    if dtype not in TYPES:
        raise UnsupportedError(f"a tensor has {dtype}")


Lower = Callable[[Lowering, Node, Dims, dict[str, Any]], Value]
"""Writes an operator whose output has these dimensions, and whose arguments are these, with values for tensors."""
