"""Operators along features: sums, means, extremes, softmax and layer norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise.compile.programs.gpu import expressions
from torchwise.compile.programs.gpu.axes import Axis, Dims, Segment
from torchwise.compile.programs.gpu.expressions import write_number
from torchwise.compile.programs.gpu.labels import reduced_dims
from torchwise.compile.programs.gpu.lowering import Lower, Lowering, check_type, key_of, relabel, write_cast
from torchwise.compile.programs.gpu.tiles import TYPES, Value
from torchwise.compile.programs.lowering import dtype_of, name_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


@dataclass(frozen=True)
class Mix:
    """How a reduction mixes numbers.

    Attributes:
        function: of Triton, which mixes those of a tile along a dimension.
        neutral: the number that changes nothing.
        join: returns the text that mixes some variables.
    """

    function: str
    neutral: str
    join: Callable[[Sequence[str]], str]


def _join_pairwise(name: str) -> Callable[[Sequence[str]], str]:
    write = expressions.NUMBERS[name]
    return lambda texts: functools.reduce(lambda one, other: write([one, other], ""), texts)


SUM = Mix("tl.sum", "0", " + ".join)
EXTREMES = {  # NaN if any number is
    "amax": Mix("largest", 'float("-inf")', _join_pairwise("maximum")),
    "amin": Mix("smallest", 'float("inf")', _join_pairwise("minimum")),
}


class Gathering:
    """A reduction of a tensor: its numbers are summed, or the largest or smallest is found.

    Args:
        made: the text.
        node: the operator.
        source: the tensor.
        places: the dimensions that are reduced.

    Raises:
        UnsupportedError: its arguments are of another kind.
    """

    def __init__(self, made: Lowering, node: Node, source: Value, places: Collection[int]) -> None:
        dtype, self._name = dtype_of(node), name_of(node)
        if not dtype.is_floating_point and self._name != "sum":
            raise UnsupportedError(f"{node.target} of integers")
        check_type(dtype)
        if source.constant is not None:
            raise UnsupportedError("a reduction of a constant")
        self._made, self._source, self._dtype = made, source, dtype
        axes = made.tiles.axes
        self.gone = {axis for place in places for axis in axes.resolve(source.dims[place])}
        self.count = math.prod(axes.size(axis) for axis in self.gone)
        self.differing = math.prod(axes.size(axis) for axis in self.gone if axis in made.features(source))
        self.within = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        self._mix = EXTREMES.get(self._name, SUM)

    def write(self, dims: Dims) -> Value:
        """Write it, and return its value, which has these dimensions."""
        return self._scale(_gather(self._made, self._source, dims, self.gone, self.within, self._mix))

    def begin(self, dims: Dims, axis: Axis, place: int) -> Value:
        """Write it for one part of an axis inside of a loop over the parts, and return the variables that gather it.

        Args:
            dims: of its value.
            axis: it.
            place: number of the line before the loop.

        Raises:
            UnsupportedError: all parts have the same numbers.
        """
        if axis not in self.gone or axis not in self._made.features(self._source):
            raise UnsupportedError("a reduction of equal numbers")
        tiles, mix = self._made.tiles, self._mix
        found = _gather(self._made, self._source, dims, self.gone, self.within, mix, kept=axis)
        for key, part in found.tiles.items():
            sizes = tiles.list_sizes(part.has_rows, part.wide)
            name = tiles.name("a")
            tiles.write(f"{name} = tl.full([{', '.join(sizes)}], {mix.neutral}, {TYPES[self.within]})", place)
            tiles.write(f"{name} = {mix.join([name, part.name])}")
            found.tiles[key] = replace(part, name=name)
        return found

    def end(self, partial: Value, axis: Axis) -> Value:
        """Write its end after that loop, and return its value."""
        result = replace(partial, tiles={})
        for key, tile in partial.tiles.items():
            dim = [one.axis for one in tile.wide].index(axis) + (1 if tile.has_rows else 0)
            wide = tuple(one for one in tile.wide if one.axis != axis)
            text = f"{self._mix.function}({tile.name}, {dim})"
            result.tiles[key] = self._made.tiles.let(text, self.within, tile.has_rows, wide)
        return self._scale(result)

    def _scale(self, found: Value) -> Value:
        if self._name in ("sum", "mean"):
            missing = self.count // self.differing
            factor = missing if self._name == "sum" else missing / self.count
            found = _scaled(self._made, found, factor) if factor != 1 else found
        return self._made.cast(found, self._dtype)


def _reduce(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    source = given["self"]
    return Gathering(made, node, source, reduced_dims(given, len(source.dims))).write(dims)


def _variance(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    source = given["self"]
    gathering = Gathering(made, node, source, reduced_dims(given, len(source.dims)))
    gone, within, count = gathering.gone, gathering.within, gathering.count
    if gathering.differing != count:
        raise UnsupportedError("a variance of equal numbers")
    correction = 1 if given.get("correction") is None else given["correction"]
    centre = _scaled(made, _sum(made, source, dims, gone, within, lambda x: x), 1 / count)
    found = _sum(made, source, dims, gone, within, lambda x, m="": f"(({x} - {m}) * ({x} - {m}))", centre)
    found = _scaled(made, found, 1 / (count - correction) if count > correction else math.inf)
    return made.cast(found, dtype_of(node))


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
    return _gather(made, source, dims, gone, within, SUM, write, centre)


def _gather(
    made: Lowering,
    source: Value,
    dims: Dims,
    gone: set[int],
    within: torch.dtype,
    mix: Mix,
    write: Callable[..., str] = lambda x: x,
    centre: Value | None = None,
    kept: Axis | None = None,
) -> Value:
    """Return numbers mixed along axes. Tiles still have the parts of an axis that is kept."""
    tiles, own = made.tiles, made.features(source)
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
            text = tiles.masked(part, lost, mix.neutral)
            lost = [one for one in lost if one.axis != kept]
            for one in reversed(lost):
                text = f"{mix.function}({text}, {tile.wide.index(one) + (1 if tile.has_rows else 0)})"
            wide = tuple(one for one in tile.wide if one not in lost)
            texts.append(tiles.let(text, within, has_rows, wide).name)
        result.tiles[key_of(point)] = tiles.let(mix.join(texts), within, has_rows, wide)
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
    top = _gather(made, source, rest, gone, within, EXTREMES["amax"])
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
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduce),
    "var": _variance,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
}
