"""Operators along features: sums, means, extremes, softmax and layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.programs.gpu import expressions
from torchwise.compile.programs.gpu.axes import Dims, Segment
from torchwise.compile.programs.gpu.expressions import write_number
from torchwise.compile.programs.gpu.labels import reduced_dims
from torchwise.compile.programs.gpu.lowering import Lower, Lowering, check_type, key_of, relabel, write_cast
from torchwise.compile.programs.gpu.tiles import TYPES, Value
from torchwise.compile.programs.lowering import dtype_of, name_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


def _reduce(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    source, dtype, name = given["self"], dtype_of(node), name_of(node)
    if not dtype.is_floating_point and name != "sum":
        raise UnsupportedError(f"{node.target} of integers")
    check_type(dtype)
    places = reduced_dims(given, len(source.dims))
    if source.constant is not None:
        raise UnsupportedError("a reduction of a constant")
    gone = {axis for place in places for axis in made.tiles.axes.resolve(source.dims[place])}
    count = math.prod(made.tiles.axes.size(axis) for axis in gone)
    within = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if name in ("amax", "amin"):
        found = _extreme(made, source, dims, gone, name, within)
    elif name == "var":
        if _count(made, source, gone) != count:
            raise UnsupportedError("a variance of equal numbers")
        correction = 1 if given.get("correction") is None else given["correction"]
        centre = _scaled(made, _sum(made, source, dims, gone, within, lambda x: x), 1 / count)
        found = _sum(made, source, dims, gone, within, lambda x, m="": f"(({x} - {m}) * ({x} - {m}))", centre)
        found = _scaled(made, found, 1 / (count - correction) if count > correction else math.inf)
    else:
        found = _sum(made, source, dims, gone, within, lambda x: x)
        missing = count // _count(made, source, gone)
        factor = missing if name == "sum" else missing / count
        found = _scaled(made, found, factor) if factor != 1 else found
    return made.cast(found, dtype)


def _count(made: Lowering, source: Value, gone: set[int]) -> int:
    """Return the number of points that differ along reduced axes."""
    return math.prod(made.tiles.axes.size(axis) for axis in gone if axis in made.features(source))


def _sum(
    made: Lowering,
    source: Value,
    dims: Dims,
    gone: set[int],
    within: torch.dtype,
    write: Callable[..., str],
    centre: Value | None = None,
) -> Value:
    """Return the sum of an expression over axes."""
    return _gather(made, source, dims, gone, within, lambda texts: " + ".join(texts), ("tl.sum", "0"), write, centre)


def _extreme(made: Lowering, source: Value, dims: Dims, gone: set[int], name: str, within: torch.dtype) -> Value:
    """Return the largest or smallest number along axes. It is NaN if any is."""
    largest = name == "amax"
    bound = 'float("-inf")' if largest else 'float("inf")'
    join = expressions.NUMBERS["maximum" if largest else "minimum"]

    def combine(texts: list[str]) -> str:
        found = texts[0]
        for one in texts[1:]:
            found = join([found, one], "")
        return found

    function = "largest" if largest else "smallest"
    return _gather(made, source, dims, gone, within, combine, (function, bound), lambda x: x)


def _gather(
    made: Lowering,
    source: Value,
    dims: Dims,
    gone: set[int],
    within: torch.dtype,
    combine: Callable[[list[str]], str],
    along: tuple[str, str],
    write: Callable[..., str],
    centre: Value | None = None,
) -> Value:
    tiles, own = made.tiles, made.features(source)
    function, neutral = along
    left, mixed = tuple(a for a in own if a not in gone), tuple(a for a in own if a in gone)
    result = Value(dims, within, features=left)
    for point in tiles.points(left):
        texts, has_rows, wide = list[str](), False, tuple[Segment, ...]()
        for inner in tiles.points(mixed):
            tile = tiles.tile(source, {**point, **inner})
            has_rows = tile.has_rows
            text = write_cast(tile.name, tile.dtype, within)
            if centre is not None:
                text = write(text, tiles.align(tiles.tile(centre, point), tile.has_rows, tile.wide))
            else:
                text = write(text)
            lost = [one for one in tile.wide if one.axis in gone]
            part = tiles.let(text, within, tile.has_rows, tile.wide)
            text = tiles.masked(part, lost, neutral)
            for one in reversed(lost):
                text = f"{function}({text}, {tile.wide.index(one) + (1 if tile.has_rows else 0)})"
            wide = tuple(one for one in tile.wide if one.axis not in gone)
            texts.append(tiles.let(text, within, has_rows, wide).name)
        result.tiles[key_of(point)] = tiles.let(combine(texts), within, has_rows, wide)
    return result


def _scaled(made: Lowering, value: Value, factor: float) -> Value:
    result = Value(value.dims, value.dtype, features=value.features)
    for key, tile in value.tiles.items():
        text = f"{tile.name} * {write_number(factor, TYPES[tile.dtype])}"
        result.tiles[key] = made.tiles.let(text, tile.dtype, tile.has_rows, tile.wide)
    return result


def _softmax(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    return _normalize(made, node, dims, given, is_log=False)


def _log_softmax(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    return _normalize(made, node, dims, given, is_log=True)


def _normalize(made: Lowering, node: Node, dims: Dims, given: dict[str, Any], *, is_log: bool) -> Value:
    source, dtype = given["self"], dtype_of(node)
    if source.dtype is not dtype or not dims or source.constant is not None:
        raise UnsupportedError("a softmax to another type")
    place = int(given["dim"]) % len(dims)
    within = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    gone = set(made.tiles.axes.resolve(dims[place]))
    if gone - set(made.features(source)):
        raise UnsupportedError("a softmax of equal numbers")
    rest = tuple(() if number == place else dim for number, dim in enumerate(dims))
    top = _extreme(made, source, rest, gone, "amax", within)
    shifted = _paired(made, source, top, within, "({} - {})")
    powers = _paired(made, shifted, None, within, "tl.exp({})")
    total = _sum(made, powers, rest, gone, within, lambda x: x)
    if is_log:
        logarithm = _paired(made, total, None, within, "tl.log({})")
        return made.cast(relabel(_paired(made, shifted, logarithm, within, "({} - {})"), dims), dtype)
    return made.cast(relabel(_paired(made, powers, total, within, "({} / {})"), dims), dtype)


def _paired(made: Lowering, value: Value, other: Value | None, within: torch.dtype, form: str) -> Value:
    """Write an expression of each tile of a value, and of that of another one with fewer features."""
    tiles, features = made.tiles, made.features(value)
    result = Value(value.dims, within, features=features)
    for point in tiles.points(features):
        tile = tiles.tile(value, point)
        texts = [write_cast(tile.name, tile.dtype, within)]
        if other is not None:
            texts.append(tiles.align(tiles.tile(other, point), tile.has_rows, tile.wide))
        result.tiles[key_of(point)] = tiles.let(form.format(*texts), within, tile.has_rows, tile.wide)
    return result


def write_layer_norm(made: Lowering, dims: Dims, given: dict[str, Any]) -> Value:
    """Write a norm along the last dimensions, with a weight and a bias if they are given."""
    source, dtype = given["input"], given["input"].dtype
    within = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    rank = len(given["normalized_shape"])
    gone = {axis for dim in dims[-rank:] for axis in made.tiles.axes.resolve(dim)}
    rest = (*dims[:-rank], *[()] * rank)
    if not gone <= set(made.features(source)):
        raise UnsupportedError("a norm of equal numbers")
    count = math.prod(made.tiles.axes.size(axis) for axis in gone)
    inverse, eps = (write_number(one, TYPES[within]) for one in (1 / count, float(given["eps"])))
    # Scaled before the sum, which would overflow for numbers whose mean does not.
    mean = _sum(made, source, rest, gone, within, lambda x: f"({x} * {inverse})")
    shifted = _paired(made, source, mean, within, "({} - {})")
    spread = _sum(made, shifted, rest, gone, within, lambda x: f"({x} * {x})")
    scale = _paired(made, spread, None, within, f"(1.0 / square_root({{}} * {inverse} + {eps}))")
    normed = _paired(made, shifted, scale, within, "({} * {})")
    for name, form in (("weight", "({} * {})"), ("bias", "({} + {})")):
        if given[name] is not None:
            normed = _paired(made, normed, _float(made, given[name], within), within, form)
    return made.cast(relabel(normed, dims), dtype)


def _float(made: Lowering, value: Value, within: torch.dtype) -> Value:
    """Return a tensor of weights in the type of the computation."""
    return value if value.dtype is within else _paired(made, value, None, within, "{}")


REDUCTIONS: dict[str, Lower] = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var"), _reduce),
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
}
