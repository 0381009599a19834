"""Products of rows with matrices in memory, and rows of tables."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.compile.programs.gpu.axes import Dims
from torchwise.compile.programs.gpu.lowering import Lower, Lowering, key_of, write_cast
from torchwise.compile.programs.gpu.shares import may_share, share_product
from torchwise.compile.programs.gpu.tiles import TYPES, Point, Tile, Value
from torchwise.compile.programs.lowering import dtype_of, shape_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


def _mm(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    return made.cast(_product(made, dims, given["self"], given["mat2"]), dtype_of(node))


def _addmm(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    if given.get("beta", 1) != 1 or given.get("alpha", 1) != 1:
        raise UnsupportedError("a product with factors")
    product = _product(made, dims, given["mat1"], given["mat2"])
    return made.pointwise(node, dims, [product, given["self"]], lambda x, _: f"({x[0]} + {x[1]})", product.dtype)


def _product(made: Lowering, dims: Dims, source: Value, matrix: Value) -> Value:
    """Return a product with a matrix in memory, summed part by part."""
    tiles, axes, dtype = made.tiles, made.tiles.axes, source.dtype
    if not dtype.is_floating_point or matrix.dtype is not dtype or source.constant is not None:
        raise UnsupportedError("a product of another type")
    within = torch.float64 if dtype is torch.float64 else torch.float32
    deep, columns = axes.list_features([source.dims[1]]), axes.list_features([dims[1]])
    if not set(deep) <= set(made.features(source)):
        raise UnsupportedError("a product with equal numbers")
    rest = tuple(one for one in made.features(source) if one not in deep)
    if rest:
        raise UnsupportedError("a product of rows that are features elsewhere")
    if may_share(made, source, matrix):
        return share_product(made, dims, source, matrix, deep, within)
    result = Value(dims, within, features=columns)
    for point in tiles.points(columns):
        total: Tile | None = None
        for inner in tiles.points(deep):
            total = _add_product(made, total, tiles.tile(source, inner), matrix, inner, point, within)
        assert total is not None
        result.tiles[key_of(point)] = total
    return result


def _add_product(
    made: Lowering, total: Tile | None, left: Tile, matrix: Value, inner: Point, point: Point, within: torch.dtype
) -> Tile:
    tiles = made.tiles
    deep = [one for one in inner.values() if one.width > 1]
    across = [one for one in point.values() if one.width > 1]
    if len(deep) > 1 or len(across) > 1:
        raise UnsupportedError("a product of more than two wide dimensions")
    right = _load_matrix(made, matrix, inner, point)
    before = f"{total.name} + " if total is not None else ""
    wide = tuple(across)
    if deep and across and left.has_rows and made.uses_dot:
        if within is torch.float64:
            raise UnsupportedError("a product of float64, which matrix units take only in part")
        masked = tiles.masked(left, deep, "0")
        masked = masked if masked == left.name else f"({masked}).to({TYPES[left.dtype]})"
        precision = ", input_precision=PRECISION" if left.dtype is torch.float32 else ""
        added = f", {total.name}" if total is not None else ""
        return tiles.let(f"tl.dot({masked}, {right}{added}{precision})", within, True, wide)
    own = write_cast(tiles.masked(left, deep, "0"), left.dtype, within)
    other = write_cast(right, matrix.dtype, within)
    rows = 1 if left.has_rows else 0
    if not deep:
        text = own if not across or not left.has_rows else f"({own})[:, None]"
        other = f"({other})[None, :]" if across and left.has_rows else other
        return tiles.let(f"{before}{text} * {other}", within, left.has_rows, wide)
    if not across:
        other = f"({other})[None, :]" if left.has_rows else other
        return tiles.let(f"{before}tl.sum({own} * {other}, {rows})", within, left.has_rows, ())
    text = f"({own})[:, :, None] * ({other})[None, :, :]" if left.has_rows else f"({own})[:, None] * {other}"
    return tiles.let(f"{before}tl.sum({text}, {rows})", within, left.has_rows, wide)


def _load_matrix(made: Lowering, matrix: Value, inner: Point, point: Point) -> str:
    """Return a variable with the part of a matrix in memory: its rows are those of the sum."""
    tiles, view = made.tiles, matrix.view
    assert view is not None
    if matrix.step:
        raise UnsupportedError("matrices that differ in each repetition")
    offset, texts, masks = view.offset, list[str](), list[str]()
    both = any(one.width > 1 for one in inner.values()) and any(one.width > 1 for one in point.values())
    for dim, stride, parts, index in (
        (matrix.dims[0], view.strides[0], inner, "[:, None]"),
        (matrix.dims[1], view.strides[1], point, "[None, :]"),
    ):
        for axis in reversed(tiles.axes.resolve(dim)):
            segment = parts[axis]
            offset += segment.start * stride
            if segment.width > 1:
                shape = index if both else ""
                texts.append(f"{tiles.range(segment)}{shape} * {stride}")
                if (mask := tiles.inside(segment)) is not None:
                    masks.append(f"{mask}{shape}")
            stride *= tiles.axes.size(axis)
    address = " + ".join([view.buffer.name, *([str(offset)] if offset else []), *(f"({one})" for one in texts)])
    mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
    return tiles.load_once(f"tl.load({address}{mask})")


def _embedding(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    """Return rows of a table in memory. A row that it does not have is NaN, as a kernel cannot raise."""
    table, indices = given["weight"], given["indices"]
    tiles, dtype = made.tiles, dtype_of(node)
    columns = tiles.axes.list_features([dims[-1]])
    rest = made.features(indices)
    result = Value(dims, dtype, features=tuple(sorted({*columns, *rest})))
    view, size = table.view, shape_of(node.args[0])[0]  # type: ignore[arg-type]
    for point in tiles.points(result.features):
        row = tiles.tile(indices, point)
        segments = [point[axis] for axis in columns]
        if len(segments) > 1 or row.wide:
            raise UnsupportedError("rows of a table by a wide dimension")
        wide = tuple(one for one in segments if one.width > 1)
        start = sum(one.start for one in segments) * view.strides[1] + view.offset
        index = f"tl.minimum(tl.maximum({row.name}, 0), {size - 1})"
        column = "[:, None]" if row.has_rows and wide else ""
        place = f"({index}){column} * {view.strides[0]}"
        masks = []
        if wide:
            turn = "[None, :]" if row.has_rows else ""
            place += f" + {tiles.range(wide[0])}{turn} * {view.strides[1]}"
            if (mask := tiles.inside(wide[0])) is not None:
                masks.append(f"{mask}{turn}")
        mask = f", mask={masks[0]}, other=0" if masks else ""
        step = f" + {tiles.loop} * {table.step}" if table.step else ""
        text = f"tl.load({view.buffer.name} + {start}{step} + {place}{mask})"
        if dtype.is_floating_point:
            text = f'tl.where((({row.name} >= 0) & ({row.name} < {size})){column}, {text}, float("nan"))'
        result.tiles[key_of(point)] = tiles.let(text, dtype, row.has_rows, wide)
    return result


PRODUCTS: dict[str, Lower] = {"mm": _mm, "addmm": _addmm, "embedding": _embedding}
