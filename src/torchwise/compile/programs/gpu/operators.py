"""The operators that a kernel takes, each by a function that writes its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchwise.compile.programs.gpu import expressions
from torchwise.compile.programs.gpu.axes import Dims, Segment
from torchwise.compile.programs.gpu.expressions import write_number
from torchwise.compile.programs.gpu.labels import CONSTANTS, MOVED, slice_bounds
from torchwise.compile.programs.gpu.lowering import Lower, Lowering, check_type, key_of, relabel, write_cast
from torchwise.compile.programs.gpu.products import PRODUCTS
from torchwise.compile.programs.gpu.reductions import REDUCTIONS, write_layer_norm
from torchwise.compile.programs.gpu.tiles import TYPES, Point, Tile, Value
from torchwise.compile.programs.lowering import dtype_of, name_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


SAME = ("clone", "contiguous", "lift_fresh_copy", "alias", "detach", "copy_to_strides")
_OPERANDS = ("self", "other", "input")
"""Arguments of operators on single numbers that are numbers or tensors."""


def lower(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    """Write an operator, and return its value.

    Args:
        made: the text.
        node: the operator.
        dims: of its output.
        given: its arguments by name, with values for tensors.

    Raises:
        UnsupportedError: its arguments are of another kind.
    """
    name = name_of(node)
    if name in (*SAME, *MOVED):
        source = next(one for one in given.values() if isinstance(one, Value))
        return relabel(made.to_registers(source), dims)
    return _LOWERINGS.get(name, _compute)(made, node, dims, given)


def lower_parts(made: Lowering, node: Node, dims: list[Dims], given: dict[str, Any]) -> list[Value]:
    """Write an operator with several outputs, and return their values."""
    if name_of(node) == "native_layer_norm":
        return [write_layer_norm(made, dims[0], given)]
    source, start, found = given["self"], 0, []
    dim = int(given["dim"]) % len(source.dims)
    for value, own in zip(node.meta["val"], dims, strict=True):
        found.append(_part(made, source, own, dim, start, name_of(node) == "unbind"))
        start += 1 if name_of(node) == "unbind" else int(value.shape[dim])
    return found


def _compute(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    name, dtype = name_of(node), dtype_of(node)
    operands = [
        one for key, one in given.items() if isinstance(one, (Value, bool, int, float, str)) and key in _OPERANDS
    ]
    alpha = given.get("alpha", 1)
    if alpha != 1 and name in ("add", "sub") and dtype is not torch.bool:
        infix = expressions.NUMBERS[name]

        def add_scaled(x: Sequence[str], kind: str) -> str:
            return infix([x[0], f"({x[1]} * {write_number(alpha, kind)})"], kind)

        return made.pointwise(node, dims, operands, add_scaled, dtype)
    if given.get("rounding_mode") is not None or given.get("decimals"):
        raise UnsupportedError(f"{node.target} rounds")
    if name in expressions.FLOATS and dtype.is_floating_point:
        return made.pointwise(node, dims, operands, expressions.FLOATS[name], dtype)
    if name in expressions.NUMBERS and dtype is not torch.bool:
        return made.pointwise(node, dims, operands, expressions.NUMBERS[name], dtype)
    if name in expressions.BITS and not dtype.is_floating_point:
        return made.pointwise(node, dims, operands, expressions.BITS[name], dtype)
    if name in expressions.COMPARISONS:
        within = _common_type(node)
        operands = [_round(made, one, within) for one in operands]
        return made.pointwise(node, dims, operands, expressions.COMPARISONS[name], within)
    if name in expressions.LOGIC and dtype is torch.bool:
        return made.pointwise(node, dims, operands, expressions.LOGIC[name], torch.bool)
    source = operands[0]
    if name in expressions.TESTS and isinstance(source, Value) and source.dtype.is_floating_point:
        return made.pointwise(node, dims, operands, expressions.TESTS[name], source.dtype)
    raise UnsupportedError(f"{node.target} has no code")


def _where(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    condition, own, other = (given[name] for name in ("condition", "self", "other"))
    if condition.dtype is not torch.bool:
        raise UnsupportedError("the condition is not boolean")
    tiles, dtype = made.tiles, dtype_of(node)
    result = Value(dims, dtype)
    varying = [one for one in (condition, own, other) if one.constant is None]
    result.features = tuple(sorted({axis for one in varying for axis in made.features(one)}))
    for point in tiles.points(result.features):
        parts = [tiles.tile(one, point) for one in varying]
        has_rows = any(one.has_rows for one in parts)
        wide = tuple(sorted({s for one in parts for s in one.wide}, key=lambda s: s.axis))
        texts = [
            write_cast(tiles.align(tiles.tile(one, point), has_rows, wide), one.dtype, to)
            if one in varying
            else one.constant
            for one, to in ((condition, torch.bool), (own, dtype), (other, dtype))
        ]
        text = f"tl.where({', '.join(texts)}).to({TYPES[dtype]})"
        result.tiles[key_of(point)] = tiles.let(text, dtype, has_rows, wide)
    return result


def _clamp(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    low, high = given.get("min", given.get("min_val")), given.get("max", given.get("max_val"))
    operands = [given["self"], *(one for one in (low, high) if one is not None)]

    def write(x: Sequence[str], kind: str) -> str:
        text, bounds = x[0], list(x[1:])
        if low is not None:
            text = expressions.NUMBERS["maximum"]([text, bounds.pop(0)], kind)
        return expressions.NUMBERS["minimum"]([text, bounds.pop(0)], kind) if high is not None else text

    if dtype_of(node) is torch.bool:
        raise UnsupportedError("a boolean is clamped")
    return made.pointwise(node, dims, operands, write, dtype_of(node))


def _pow(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    base, exponent, dtype = given["self"], given["exponent"], dtype_of(node)
    if not dtype.is_floating_point:
        raise UnsupportedError("a power of integers")
    if isinstance(exponent, (int, float)) and isinstance(base, Value):
        return made.pointwise(node, dims, [base], lambda x, kind: expressions.write_power(x[0], exponent, kind), dtype)
    if not isinstance(base, Value) or not isinstance(exponent, Value):
        raise UnsupportedError("a power of a number")
    return made.pointwise(node, dims, [base, exponent], expressions.FLOATS["pow"], dtype)


def _gelu(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    approximate = str(given.get("approximate", "none"))

    def write(x: Sequence[str], kind: str) -> str:
        return expressions.write_gelu(x[0], approximate, kind)

    return made.pointwise(node, dims, [given["self"]], write, dtype_of(node))


def _leaky_relu(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    slope = given["negative_slope"]

    def write(x: Sequence[str], kind: str) -> str:
        return f"tl.where({x[0]} > 0, {x[0]}, {x[0]} * {write_number(slope, kind)})"

    return made.pointwise(node, dims, [given["self"]], write, dtype_of(node))


def _to_copy(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    value, to = given["src" if name_of(node) == "copy" else "self"], dtype_of(node)
    check_type(to)
    if value.dtype is to:
        return relabel(made.to_registers(value), dims)
    if value.dtype.is_floating_point and not to.is_floating_point and to is not torch.bool:
        raise UnsupportedError("floating-point numbers become integers")
    if to is torch.bool:
        return made.pointwise(node, dims, [value], lambda x, _: f"({x[0]} != 0)", value.dtype)
    within = value.dtype if value.dtype.is_floating_point else to
    return made.pointwise(node, dims, [value], lambda x, _: x[0], within)


def _constant(_made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    name = name_of(node)
    found = CONSTANTS[name]
    number = given["s" if name == "scalar_tensor" else "fill_value"] if found is None else found
    check_type(dtype_of(node))
    if not isinstance(number, (bool, int, float)):
        raise UnsupportedError("a constant that is computed")
    dtype = dtype_of(node)
    number = torch.tensor(number, dtype=dtype, device="cpu").item()  # as that type has it
    return Value(dims, dtype, constant=write_number(number, TYPES[dtype]))


def _arange(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    start, step, dtype = given.get("start", 0), given.get("step", 1), dtype_of(node)
    if not isinstance(start, int) or not isinstance(step, int):
        raise UnsupportedError("a range of fractions")
    tiles, axes = made.tiles, made.tiles.axes.resolve(dims[0])
    if len(axes) > 1:
        raise UnsupportedError("a range is split")
    result = Value(dims, dtype, features=tiles.axes.list_features(dims))
    largest = max(abs(start), abs(step), abs(start + step * tiles.axes.length(axes)))
    widened = ".to(tl.int64)" if largest >= 2**31 else ""  # places have 32 bits
    for point in tiles.points(result.features):
        if result.features:
            segment = point[result.features[0]]
            place, wide = f"tl.full([], {segment.start}, tl.int64)", tuple[Segment, ...]()
            if segment.width > 1:
                place, wide = f"({tiles.start(segment)} + {tiles.range(segment)}){widened}", (segment,)
            tile = tiles.let(f"({start} + {step} * {place}).to({TYPES[dtype]})", dtype, False, wide)
        elif axes:
            place = f"{tiles.row(axes[0])}{widened}"
            tile = tiles.let(f"({start} + {step} * {place}).to({TYPES[dtype]})", dtype, True, ())
        else:
            tile = tiles.let(f"tl.full([], {start}, {TYPES[dtype]})", dtype, False, ())
        result.tiles[key_of(point)] = tile
    return result


def _slice(made: Lowering, _node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    dim = int(given["dim"]) % len(dims)
    source = given["self"]
    size = made.tiles.axes.length(made.tiles.axes.resolve(source.dims[dim]))
    return _part(made, source, dims, dim, slice_bounds(given, size)[0], False)


def _select(made: Lowering, _node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    source = given["self"]
    dim = int(given["dim"]) % len(source.dims)
    size = made.tiles.axes.length(made.tiles.axes.resolve(source.dims[dim]))
    return _part(made, source, dims, dim, int(given["index"]) % size, True)


def _part(made: Lowering, source: Value, dims: Dims, dim: int, start: int, drops: bool) -> Value:
    """Return the tiles of a part of a tensor along a dimension."""
    if source.constant is not None:
        return Value(dims, source.dtype, constant=source.constant)
    axes, tiles = made.tiles.axes, made.tiles
    whole = axes.resolve(source.dims[dim])
    if not whole or whole[0] not in made.features(source):
        return relabel(made.to_registers(source), dims)
    outer, inner = whole[0], axes.length(whole[1:])
    first = start // inner
    part = None if drops else axes.resolve(dims[dim])
    axis = None if part is None or len(part) < len(whole) else part[0]
    result = Value(dims, source.dtype)
    result.features = tuple(
        sorted({*(one for one in made.features(source) if one != outer), *([axis] if axis is not None else [])})
    )
    for point in tiles.points(result.features):
        begin = first + (point[axis].start if axis is not None else 0)
        segment = next(one for one in tiles.segments(outer) if one.start == begin)
        tile = tiles.tile(source, {**point, outer: segment})
        if axis is not None and (renamed := point[axis]) != segment and segment.width > 1:
            if renamed.width != segment.width or tiles.padded(renamed) != tiles.padded(segment):
                raise UnsupportedError("a part has other tiles than its whole")
            tile = _rename(made, tile, {segment: renamed})
        result.tiles[key_of(point)] = tile
    return result


def _rename(made: Lowering, tile: Tile, names: dict[Segment, Segment]) -> Tile:
    """Return a tile with other axes. If their order changes, so do its dimensions."""
    wide = tuple(names.get(one, one) for one in tile.wide)
    ordered = tuple(sorted(wide, key=lambda one: one.axis))
    if ordered == wide:
        return Tile(tile.name, tile.dtype, tile.has_rows, wide)
    rows = 1 if tile.has_rows else 0
    order = [*range(rows), *(wide.index(one) + rows for one in ordered)]
    return made.tiles.let(f"tl.permute({tile.name}, {tuple(order)})", tile.dtype, tile.has_rows, ordered)


def _cat(made: Lowering, node: Node, dims: Dims, given: dict[str, Any]) -> Value:
    tiles, axes, dtype = made.tiles, made.tiles.axes, dtype_of(node)
    dim = int(given["dim"]) % len(dims)
    whole = axes.resolve(dims[dim])
    sources = given["tensors"]
    if any(one.dtype is not dtype for one in sources):
        raise UnsupportedError(f"{node.target} joins tensors of several kinds")
    result = Value(dims, dtype, features=axes.list_features(dims))
    if len(whole) != 1 or whole[0] not in result.features:
        raise UnsupportedError("tensors are joined along rows")
    bounds, start = [], 0
    for one in sources:
        length = axes.length(axes.resolve(one.dims[dim]))
        bounds.append((start, start + length, one))
        start += length
    found: list[tuple[Point, Tile]] = []
    for point in tiles.points(result.features):
        segment = point[whole[0]]
        begin, _, source = next(one for one in bounds if one[0] <= segment.start < one[1])
        own_axes, inner = axes.resolve(source.dims[dim]), {**point}
        renamed: dict[Segment, Segment] = {}
        if own_axes:
            if len(own_axes) > 1:
                raise UnsupportedError("a joined dimension is itself of several")
            own = next(one for one in tiles.segments(own_axes[0]) if one.start == segment.start - begin)
            if own.width != segment.width or tiles.padded(own) != tiles.padded(segment):
                raise UnsupportedError("a part has other tiles than its whole")
            inner[own_axes[0]], renamed = own, {own: segment}
        if source.constant is not None:
            tile = tiles.let(f"tl.full([], {source.constant}, {TYPES[dtype]})", dtype, False, ())
        else:
            tile = _rename(made, tiles.tile(source, inner), renamed)
        found.append((point, tile))
    has_rows = any(tile.has_rows for _, tile in found)
    for point, tile in found:  # all have the same dimensions, though one may be of equal numbers
        wide = tuple(sorted((s for s in point.values() if s.width > 1), key=lambda one: one.axis))
        if (tile.has_rows, tile.wide) != (has_rows, wide):
            tile = tiles.let(tiles.spread(tile, has_rows, wide), dtype, has_rows, wide)
        result.tiles[key_of(point)] = tile
    return result


_LOWERINGS: dict[str, Lower] = {
    **PRODUCTS,
    **REDUCTIONS,
    **dict.fromkeys(CONSTANTS, _constant),
    **dict.fromkeys(("clamp", "hardtanh"), _clamp),
    **dict.fromkeys(("_to_copy", "copy"), _to_copy),
    "where": _where,
    "pow": _pow,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "arange": _arange,
    "slice": _slice,
    "select": _select,
    "cat": _cat,
}


def _round(made: Lowering, operand: Any, to: torch.dtype) -> Any:
    """Return an operand of a comparison as PyTorch compares it: a type of 16 bits may have no such number."""
    if to not in (torch.float16, torch.bfloat16):
        return operand
    if isinstance(operand, str):  # differs in each repetition of a loop
        return f"{operand}.to(tl.float32).to({TYPES[to]})"
    if not isinstance(operand, Value):
        return torch.tensor(operand, dtype=to, device="cpu").item()
    if operand.dtype is to:
        return operand
    if operand.constant is None:
        return made.cast(made.cast(made.to_registers(operand), torch.float32), to)
    return made.fold(operand.dims, to, [operand], lambda x, _: x[0], torch.float32)


def _common_type(node: Node) -> torch.dtype:
    given: list[Any] = [one.meta["val"] if isinstance(one, Node) else one for one in node.args[:2]]
    return torch.result_type(*given)
