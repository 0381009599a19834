"""Random numbers that a kernel draws, each by its place in its tensor, and by a seed that each call draws anew.

Philox makes four numbers at once (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). So up to four
tensors of one form share its work, as the two normal numbers of each step of Heston's model do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchwise.compile.programs.gpu.axes import Dims
from torchwise.compile.programs.gpu.labels import DRAWS
from torchwise.compile.programs.gpu.lowering import Lowering, key_of, write_cast
from torchwise.compile.programs.gpu.tiles import Tile, Value, list_wide
from torchwise.compile.programs.lowering import dtype_of, name_of, shape_of
from torchwise.compile.programs.values import Buffer, View, row_major
from torchwise.errors import UnsupportedError

SEED = "seed"
"""The variable with the seed of a call."""
AT_ONCE = 4
HEADER = """
@triton.jit
def draw_rand(seed, number, place):
    low = place.to(tl.uint32)
    none = low * 0
    high = none
    if tl.constexpr(place.dtype.primitive_bitwidth) > 32:
        high = (place >> 32).to(tl.uint32)
    first, second, third, fourth = tl.philox(seed, low, high, none + number, none)
    first, second = tl.uint_to_uniform_float(first), tl.uint_to_uniform_float(second)
    return first, second, tl.uint_to_uniform_float(third), tl.uint_to_uniform_float(fourth)


@triton.jit
def draw_randn(seed, number, place):
    first, second, third, fourth = draw_rand(seed, number, place)
    first, second = tl.pair_uniform_to_normal(first, second)
    third, fourth = tl.pair_uniform_to_normal(third, fourth)
    return first, second, third, fourth


"""
"""What is not used of the four is left out by Triton."""


def draw(made: Lowering, node: torch.fx.Node, dims: Dims, number: Callable[[], str]) -> Value:
    """Return a tensor of random numbers. They are written with those of the next draws of its form.

    Args:
        made: the text.
        node: the operator.
        dims: of its output.
        number: returns a number that no other draw of the call has.

    Raises:
        UnsupportedError: it draws numbers of another precision than float32 or less.
    """
    dtype, shape, kind = dtype_of(node), shape_of(node), DRAWS[name_of(node)]
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(f"random numbers of {dtype}")
    axes = made.tiles.axes
    spare = made.tiles.spare.setdefault((kind, shape, *(tuple(axes.resolve(dim)) for dim in dims)), [])
    if not spare:
        spare += _write(made, kind, dims, shape, number())
    found = spare.pop(0)
    return found if dtype is torch.float32 else _cast(made, found, dtype)


def _write(made: Lowering, kind: str, dims: Dims, shape: tuple[int, ...], number: str) -> list[Value]:
    tiles = made.tiles
    strides = row_major(shape)
    places = Value(dims, torch.int64, View(Buffer("0", torch.int64, shape, strides, "work"), shape, strides))
    features = tiles.axes.list_features(dims)
    has_rows = bool(tiles.axes.list_rows(dims))
    values = [Value(dims, torch.float32, features=features) for _ in range(AT_ONCE)]
    for point in tiles.points(features):
        wide = list_wide(point)
        place, _ = tiles.locate(places, point, has_rows, wide)
        names = [tiles.name() for _ in values]
        tiles.write(f"{', '.join(names)} = draw_{kind}({SEED}, {number}, {tiles.spread_text(place, has_rows, wide)})")
        for value, name in zip(values, names, strict=True):
            value.tiles[key_of(point)] = Tile(name, torch.float32, has_rows, wide)
    return values


def _cast(made: Lowering, value: Value, dtype: torch.dtype) -> Value:
    tiles, found = made.tiles, Value(value.dims, dtype, features=value.features)
    for key, tile in value.tiles.items():
        text = write_cast(tile.name, torch.float32, dtype)
        found.tiles[key] = tiles.let(text, dtype, tile.has_rows, tile.wide)
    return found
