"""Random numbers that a kernel draws, each by its place in its tensor, and by a seed that each call draws anew."""

from __future__ import annotations

import torch

from torchwise.compile.programs.gpu.axes import Dims
from torchwise.compile.programs.gpu.labels import DRAWS
from torchwise.compile.programs.gpu.lowering import Lowering, key_of, write_cast
from torchwise.compile.programs.gpu.tiles import Value, list_wide
from torchwise.compile.programs.lowering import dtype_of, name_of, shape_of
from torchwise.compile.programs.values import Buffer, View, row_major
from torchwise.errors import UnsupportedError


def draw(made: Lowering, node: torch.fx.Node, dims: Dims, seed: str) -> Value:
    """Write a tensor of random numbers, by Philox as in Inductor's code.

    Args:
        made: the text.
        node: the operator.
        dims: of its output.
        seed: the address of its seed.

    Raises:
        UnsupportedError: it draws numbers of another precision than float32 or less.
    """
    tiles, dtype, shape = made.tiles, dtype_of(node), shape_of(node)
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(f"random numbers of {dtype}")
    places = Value(
        dims, torch.int64, View(Buffer("0", torch.int64, shape, row_major(shape), "work"), shape, row_major(shape))
    )
    features = tiles.axes.list_features(dims)
    has_rows = bool(tiles.axes.list_rows(dims))
    result = Value(dims, dtype, features=features)
    for point in tiles.points(features):
        wide = list_wide(point)
        place, _ = tiles.locate(places, point, has_rows, wide)
        text = f"tl.{DRAWS[name_of(node)]}(tl.load({seed}), {tiles.spread_text(place, has_rows, wide)})"
        result.tiles[key_of(point)] = tiles.let(write_cast(text, torch.float32, dtype), dtype, has_rows, wide)
    return result
