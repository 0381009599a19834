"""Operators along rows: sums, means, extremes, softmax and layer norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torchwise.compile.programs import pointwise
from torchwise.compile.programs.kernels import Loop
from torchwise.compile.programs.lowering import (
    Lower,
    Lowering,
    Operands,
    dtype_of,
    name_of,
    rows_of,
    shape_of,
)
from torchwise.compile.programs.values import C_TYPES, Value, View
from torchwise.errors import UnsupportedError

SHORT = 16
"""Most numbers of a row whose softmax is computed for several rows at once."""
ROWS_OUT = {"sum": "sum_rows", "mean": "mean_rows", "amax": "amax_rows", "amin": "amin_rows"}


def arrange_rows(made: Lowering, value: Value, dims: Sequence[int] | None) -> tuple[View, int, int, int]:
    """Return a value with dimensions as rows: the view, and the count, width and pitch of them."""
    rank = len(value.shape)
    inner = sorted({dim % rank for dim in dims}) if dims else list(range(rank))
    outer = [dim for dim in range(rank) if dim not in inner]
    view = made.place(value)
    order = [*outer, *inner]
    turned = View(
        view.buffer, tuple(view.shape[dim] for dim in order), tuple(view.strides[dim] for dim in order), view.offset
    )
    width = math.prod(turned.shape[len(outer) :])
    if len(inner) == 1 and (rows := rows_of(turned)) is not None:
        return turned, *rows
    whole = made.place_contiguous(Value(turned.shape, value.dtype, turned))
    return whole, math.prod(turned.shape[: len(outer)]), width, width


def _reduce(made: Lowering, given: Operands) -> Value:
    node, value, name = given.node, given.value("self"), name_of(given.node)
    dtype = dtype_of(node)
    if value.dtype is not dtype:
        value = _as_type(made, value, dtype)
    if not dtype.is_floating_point and name not in ("sum",):
        raise UnsupportedError(f"{node.target} of integers")
    dims = given.number("dim", None)
    dims = [dims] if isinstance(dims, int) else dims
    view, count, width, pitch = arrange_rows(made, value, dims)
    out = _allocate_rows(made, node, count, dtype)
    kind = C_TYPES[dtype]
    arguments: list[View | str] = [view, str(count), str(width), str(pitch)]
    function = "sum_whole_rows" if not dtype.is_floating_point else ROWS_OUT.get(name, "var_rows")
    if name == "var":
        correction = given.number("correction", 1)
        arguments.append(f"(double){float(correction)!r}")
    return made.call(f"{function}<{kind}>", arguments, out, count * width)


def _allocate_rows(made: Lowering, node: torch.fx.Node, count: int, dtype: torch.dtype) -> View:
    """Return memory for a number for each row."""
    if math.prod(shape_of(node)) != count:
        raise UnsupportedError(f"{node.target} reduces other dimensions")
    return made.allocate(shape_of(node), dtype)


def _as_type(made: Lowering, value: Value, dtype: torch.dtype) -> Value:
    if dtype not in C_TYPES or (value.dtype.is_floating_point and not dtype.is_floating_point):
        raise UnsupportedError(f"{value.dtype} becomes {dtype}")
    number, (name,) = made._join(value.shape, [value])
    loop = made.kernels[number]
    assert isinstance(loop, Loop)
    cast = pointwise.write_cast(name, value.dtype, dtype, C_TYPES[dtype])
    return Value(value.shape, dtype, None, number, loop.let(dtype, cast))


def _argmax(made: Lowering, given: Operands) -> Value:
    value, dim = given.value("self"), given.number("dim", None)
    view, count, width, pitch = arrange_rows(made, value, None if dim is None else [dim])
    out = _allocate_rows(made, given.node, count, torch.int64)
    return made.call(
        f"argmax_rows<{C_TYPES[value.dtype]}>", [view, str(count), str(width), str(pitch)], out, count * width
    )


def _any(made: Lowering, given: Operands) -> Value:
    value, dims = given.value("self"), given.number("dim", None)
    view, count, width, pitch = arrange_rows(made, value, [dims] if isinstance(dims, int) else dims)
    out = _allocate_rows(made, given.node, count, torch.bool)
    return made.call(
        f"any_rows<{C_TYPES[value.dtype]}>", [view, str(count), str(width), str(pitch)], out, count * width
    )


def _softmax(made: Lowering, given: Operands) -> Value:
    node, value = given.node, given.value("self")
    dim = int(given.number("dim")) % max(len(value.shape), 1)
    if dim != len(value.shape) - 1 or value.dtype is not dtype_of(node):
        raise UnsupportedError("a softmax along an outer dimension, or to another type")
    view, count, width, pitch = arrange_rows(made, value, [dim])
    out = made.allocate(value.shape, value.dtype)
    function = "log_softmax_rows" if "log" in name_of(node) else "softmax_rows"
    work = 12 * count * width
    if function == "softmax_rows" and 1 < width <= SHORT:
        types = f"{C_TYPES[value.dtype]}, {width}"
        return made.call(f"softmax_short<{types}>", [view, str(count), str(pitch)], out, work)
    return made.call(f"{function}<{C_TYPES[value.dtype]}>", [view, str(count), str(width), str(pitch)], out, work)


def _layer_norm(made: Lowering, given: Operands) -> Value:
    value, normed = given.value("input"), given.number("normalized_shape")
    kind, width = C_TYPES[value.dtype], math.prod(normed)
    view = made.place_contiguous(value)
    scales = [given.optional(name) for name in ("weight", "bias")]
    passed = [f"(const {kind}*)nullptr" if one is None else made.place_contiguous(one) for one in scales]
    if any(one is not None and one.dtype is not value.dtype for one in scales):
        raise UnsupportedError("the weights of a norm have another type")
    out = made.allocate(value.shape, value.dtype)
    count = math.prod(value.shape) // width
    arguments: list[View | str] = [
        view,
        str(count),
        str(width),
        str(width),
        *passed,
        f"(double){float(given.number('eps'))!r}",
    ]
    done = made.call(f"norm_rows<{kind}>", arguments, out, 6 * count * width)
    return Value((), value.dtype, parts=(done,))


# Rows of tables


REDUCTIONS: dict[str, Lower] = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var"), _reduce),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "argmax": _argmax,
    "any": _any,
    "native_layer_norm": _layer_norm,
}
