"""The operators that regions take, each by a function that adds its kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchwise.compile.programs import pointwise
from torchwise.compile.programs.kernels import Loop
from torchwise.compile.programs.lowering import (
    Lower,
    Lowering,
    Operands,
    Scalar,
    dtype_of,
    name_of,
    rows_of,
    shape_of,
)
from torchwise.compile.programs.products import PRODUCTS
from torchwise.compile.programs.values import C_TYPES, Value, View
from torchwise.errors import UnsupportedError

VIEWS = (
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "alias", "detach", "diagonal"),
)
"""Operators whose output is a part of the same memory. `as_strided` is none: it counts from the storage's beginning."""
SAME = ("clone", "lift_fresh_copy", "contiguous")
"""Operators whose output has the same numbers."""
ROWS_OUT = {"sum": "sum_rows", "mean": "mean_rows", "amax": "amax_rows", "amin": "amin_rows"}


def lower(made: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Value]) -> Value:
    """Add the kernels of a node, and return its value.

    Raises:
        UnsupportedError: there are none for it.
    """
    name = name_of(node)
    if name == "getitem":
        return _take_part(node, values)
    if name == "copy_to_strides":  # an output, which is written to memory with these strides
        return values[node.all_input_nodes[0]]
    given = Operands(node, values)
    found = _LOWERINGS.get(name) or PRODUCTS.get(name)
    if found is not None:
        return found(made, given)
    if name in VIEWS:
        return _view(made, given)
    return _compute(made, given, name)


def is_known(node: torch.fx.Node) -> bool:
    """Whether there may be kernels for a node."""
    name = name_of(node)
    return (
        name in ("getitem", "copy_to_strides")
        or name in _LOWERINGS
        or name in PRODUCTS
        or name in VIEWS
        or name in _POINTWISE
    )


_POINTWISE = {
    *pointwise.FLOATS,
    *pointwise.NUMBERS,
    *pointwise.BITS,
    *pointwise.COMPARISONS,
    *pointwise.LOGIC,
    *pointwise.TESTS,
}


def _take_part(node: torch.fx.Node, values: dict[torch.fx.Node, Value]) -> Value:
    source, place = node.args
    assert isinstance(source, torch.fx.Node)
    assert isinstance(place, int)
    parts = values[source].parts
    if place >= len(parts):
        raise UnsupportedError(f"output {place} of {source.target} is not computed")
    return parts[place]


def _compute(made: Lowering, given: Operands, name: str) -> Value:
    node, operands = given.node, given.all()
    dtype = dtype_of(node)
    if "alpha" in [one.name for one in node.target._schema.arguments]:  # type: ignore[union-attr]
        if given.number("alpha", 1) != 1:
            operands[1] = _scale(made, given, operands[1])
        operands = operands[:2]
    if len(operands) > 2 or node.target._overloadname == "decimals":  # type: ignore[union-attr]
        raise UnsupportedError(f"{node.target} has further arguments")
    if name in pointwise.FLOATS:
        if not dtype.is_floating_point or given.number("rounding_mode") is not None:
            raise UnsupportedError(f"{node.target} computes integers")
        check = "is_wide" if name in pointwise.ANGLES and dtype is torch.float32 else None
        return made.compute(node, operands, pointwise.FLOATS[name], dtype, check)
    if name in pointwise.NUMBERS and dtype is not torch.bool:
        return made.compute(node, operands, pointwise.NUMBERS[name], dtype)
    if name in pointwise.BITS and not dtype.is_floating_point:
        return made.compute(node, operands, pointwise.BITS[name], dtype)
    if name in pointwise.COMPARISONS:
        return made.compute(node, operands, pointwise.COMPARISONS[name], _common_type(node))
    if name in pointwise.LOGIC:
        return made.compute(node, operands, pointwise.LOGIC[name], torch.bool)
    if name in pointwise.TESTS:
        source = given.value("self").dtype
        if source.is_floating_point:
            return made.compute(node, operands, pointwise.TESTS[name], source)
    raise UnsupportedError(f"{node.target} has no code")


def _scale(made: Lowering, given: Operands, operand: Value | Scalar) -> Value | Scalar:
    alpha = given.number("alpha", 1)
    if not isinstance(operand, Value):
        scaled: Scalar = operand * alpha
        return scaled
    if operand.shape != shape_of(given.node):
        raise UnsupportedError("a broadcast operand is scaled")
    return made.compute(given.node, [operand, alpha], pointwise.NUMBERS["mul"], dtype_of(given.node))


def _common_type(node: torch.fx.Node) -> torch.dtype:
    given: list[Any] = [one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in node.args[:2]]
    return torch.result_type(*given)


def _view(made: Lowering, given: Operands) -> Value:
    """Return the part of a value's memory that an operator returns. PyTorch finds its strides."""
    node = given.node
    value = given.value("self")
    if value.constant is not None:
        return Value(shape_of(node), value.dtype, constant=value.constant)
    if value.shape == shape_of(node) and name_of(node) in (
        "view",
        "_unsafe_view",
        "reshape",
        "alias",
        "detach",
        "expand",
    ):
        return value
    view = made.place(value)
    try:
        found = _find_view(node, view)
    except RuntimeError:  # such a view needs the numbers in another order
        found = _find_view(node, made.place_contiguous(value))
    return Value(found.shape, found.dtype, found)


def _find_view(node: torch.fx.Node, view: View) -> View:
    memory = torch.empty(view.offset + view.buffer.span, dtype=view.dtype, device="meta")
    source = memory.as_strided(view.shape, view.strides, view.offset)
    if name_of(node) in ("_unsafe_view", "reshape"):
        found = source.view(shape_of(node))
    else:
        found = node.target(source, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return View(view.buffer, tuple(found.shape), tuple(found.stride()), int(found.storage_offset()))


def _split(made: Lowering, given: Operands) -> Value:
    value, dim = given.value("self"), int(given.number("dim", 0))
    view = made.place(value)
    dim %= len(view.shape)
    parts, start = [], 0
    for tensor in given.node.meta["val"]:
        shape = tuple(map(int, tensor.shape))
        part = View(view.buffer, shape, view.strides, view.offset + start * view.strides[dim])
        parts.append(Value(shape, value.dtype, part))
        start += shape[dim]
    return Value((), value.dtype, parts=tuple(parts))


def _unbind(made: Lowering, given: Operands) -> Value:
    value, dim = given.value("self"), int(given.number("dim", 0))
    view = made.place(value)
    dim %= len(view.shape)
    shape, strides = (one[:dim] + one[dim + 1 :] for one in (view.shape, view.strides))
    parts = [
        Value(shape, value.dtype, View(view.buffer, shape, strides, view.offset + place * view.strides[dim]))
        for place in range(view.shape[dim])
    ]
    return Value((), value.dtype, parts=tuple(parts))


def _cat(made: Lowering, given: Operands) -> Value:
    """Have each part written to its place, if possible by the loop that computes it."""
    node, dim = given.node, int(given.number("dim", 0))
    out = made.allocate(shape_of(node), dtype_of(node))
    dim, start = dim % len(out.shape), 0
    for value in given.tensors("tensors"):
        if len(value.shape) != len(out.shape) or value.dtype is not out.dtype:
            raise UnsupportedError(f"{node.target} joins tensors of several kinds")
        made._store(value, View(out.buffer, value.shape, out.strides, start * out.strides[dim]))
        start += value.shape[dim]
    return Value(out.shape, out.dtype, out)


def _copy_into(made: Lowering, given: Operands) -> Value:
    """Have a tensor copied, and then a part of it replaced."""
    node, name = given.node, name_of(given.node)
    value, source = given.value("self"), given.value("src")
    out = made.allocate(value.shape, value.dtype)
    made._store(value, out)
    dim = int(given.number("dim", 0)) % len(out.shape)
    if name == "select_scatter":
        index = int(given.number("index")) % out.shape[dim]
        shape, strides = (one[:dim] + one[dim + 1 :] for one in (out.shape, out.strides))
        part = View(out.buffer, shape, strides, index * out.strides[dim])
    else:
        start, step = int(given.number("start", 0)), int(given.number("step", 1))
        start = max(start + out.shape[dim], 0) if start < 0 else start
        strides = tuple(stride * step if one == dim else stride for one, stride in enumerate(out.strides))
        part = View(out.buffer, source.shape, strides, start * out.strides[dim])
    if source.dtype is not out.dtype or part.shape != source.shape:
        raise UnsupportedError(f"{node.target} converts or broadcasts")
    made.kernels.append(Loop(source.shape))  # after the copy
    loop = made.kernels[-1]
    assert isinstance(loop, Loop)
    name_there = made._name_in(source, len(made.kernels) - 1, source.shape)
    loop.store(part, name_there)
    out.buffer.ready = len(made.kernels) - 1
    return Value(out.shape, out.dtype, out)


def _where(made: Lowering, given: Operands) -> Value:
    node = given.node
    condition, own, other = given.value("condition"), given.value("self"), given.value("other")
    if condition.dtype is not torch.bool:
        raise UnsupportedError("the condition is not boolean")
    kind, dtype = C_TYPES[dtype_of(node)], dtype_of(node)
    number, (mask, a, b) = made._join(shape_of(node), [condition, own, other])
    loop = made.kernels[number]
    assert isinstance(loop, Loop)
    a, b = (pointwise.write_cast(name, one.dtype, dtype, kind) for name, one in ((a, own), (b, other)))
    return Value(shape_of(node), dtype, None, number, loop.let(dtype, f"{mask} ? {a} : {b}"))


def _clamp(made: Lowering, given: Operands) -> Value:
    node, value, dtype = given.node, given.value("self"), dtype_of(given.node)
    low, high = ("min", "max") if name_of(node) == "clamp" else ("min_val", "max_val")
    bounds: list[Value | Scalar] = []
    parts = []
    for name, function in ((low, "largest"), (high, "smallest")):
        bound = given._given.get(name)
        if bound is not None:
            bounds.append(given.value(name) if isinstance(bound, torch.fx.Node) else bound)
            parts.append(function)

    def write(x: Sequence[str], _kind: str) -> str:
        text = x[0]
        for bound, function in zip(x[1:], parts, strict=True):
            text = f"{function}({text}, {bound})"
        return text

    if dtype is torch.bool:
        raise UnsupportedError("a boolean is clamped")
    return made.compute(node, [value, *bounds], write, dtype)


def _power(made: Lowering, given: Operands) -> Value:
    exponent, dtype = given._given.get("exponent"), dtype_of(given.node)
    if not dtype.is_floating_point:
        raise UnsupportedError("a power of integers")
    if (
        isinstance(exponent, (int, float))
        and "self" in given._given
        and isinstance(given._given["self"], torch.fx.Node)
    ):
        return made.compute(
            given.node, [given.value("self")], lambda x, kind: pointwise.write_power(x[0], exponent, kind), dtype
        )
    return made.compute(given.node, given.all(), pointwise.FLOATS["pow"], dtype)


def _gelu(made: Lowering, given: Operands) -> Value:
    approximate = given.number("approximate", "none")
    return made.compute(
        given.node,
        [given.value("self")],
        lambda x, kind: pointwise.write_gelu(x[0], approximate, kind),
        dtype_of(given.node),
    )


def _leaky_relu(made: Lowering, given: Operands) -> Value:
    slope = given.number("negative_slope", 0.01)
    return made.compute(
        given.node,
        [given.value("self"), slope],
        lambda x, _: f"({x[0]} > 0 ? {x[0]} : {x[0]} * {x[1]})",
        dtype_of(given.node),
    )


def _convert(made: Lowering, given: Operands) -> Value:
    node, value = given.node, given.value("self")
    to = dtype_of(node)
    if to is value.dtype:
        return value
    if value.dtype.is_floating_point and to in (torch.int32, torch.uint8):
        raise UnsupportedError("floating-point numbers become short integers")
    if to not in C_TYPES or value.dtype not in C_TYPES:
        raise UnsupportedError(f"{value.dtype} becomes {to}")
    return made.compute(node, [value], lambda x, _: x[0], to)


def _constant(_made: Lowering, given: Operands) -> Value:
    name = name_of(given.node)
    if dtype_of(given.node) not in C_TYPES or given.node.meta["val"].device.type != "cpu":
        raise UnsupportedError("a constant of another kind")
    found = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}.get(name)
    number = given.number("s" if name == "scalar_tensor" else "fill_value") if found is None else found
    return Value(shape_of(given.node), dtype_of(given.node), constant=number)


def _arange(made: Lowering, given: Operands) -> Value:
    start, step = given.number("start", 0), given.number("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise UnsupportedError("a range of fractions")
    return made.ramp(given.node, 0, start, step)


# Reductions


def _arranged(made: Lowering, value: Value, dims: Sequence[int] | None) -> tuple[View, int, int, int]:
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
    view, count, width, pitch = _arranged(made, value, dims)
    out = made.allocate(shape_of(node), dtype)
    kind = C_TYPES[dtype]
    arguments: list[View | str] = [view, str(count), str(width), str(pitch)]
    function = f"{ROWS_OUT[name]}<{kind}>" if name in ROWS_OUT else f"var_rows<{kind}>"
    if name == "var":
        correction = given.number("correction", 1)
        arguments.append(f"(double){float(correction)!r}")
    return made.call(function, arguments, out, count * width)


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
    view, count, width, pitch = _arranged(made, value, None if dim is None else [dim])
    out = made.allocate(shape_of(given.node), torch.int64)
    return made.call(
        f"argmax_rows<{C_TYPES[value.dtype]}>", [view, str(count), str(width), str(pitch)], out, count * width
    )


def _any(made: Lowering, given: Operands) -> Value:
    value, dims = given.value("self"), given.number("dim", None)
    view, count, width, pitch = _arranged(made, value, [dims] if isinstance(dims, int) else dims)
    out = made.allocate(shape_of(given.node), torch.bool)
    return made.call(
        f"any_rows<{C_TYPES[value.dtype]}>", [view, str(count), str(width), str(pitch)], out, count * width
    )


def _softmax(made: Lowering, given: Operands) -> Value:
    node, value = given.node, given.value("self")
    dim = int(given.number("dim")) % max(len(value.shape), 1)
    if dim != len(value.shape) - 1 or value.dtype is not dtype_of(node):
        raise UnsupportedError("a softmax along an outer dimension, or to another type")
    view, count, width, pitch = _arranged(made, value, [dim])
    out = made.allocate(value.shape, value.dtype)
    function = "log_softmax_rows" if "log" in name_of(node) else "softmax_rows"
    work = 12 * count * width
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


def _embedding(made: Lowering, given: Operands) -> Value:
    name = name_of(given.node)
    if name == "embedding":
        table, index = given.value("weight"), given.value("indices")
    elif name == "index_select":
        table, index = given.value("self"), given.value("index")
        if int(given.number("dim")) % max(len(table.shape), 1):
            raise UnsupportedError("rows are taken along another dimension")
    else:
        table, (index, *more) = given.value("self"), given.tensors("indices")
        if more:
            raise UnsupportedError("several indices")
    if index.dtype not in (torch.int64, torch.int32) or not table.shape:
        raise UnsupportedError("an index that is a mask")
    view, places = made.place_contiguous(table), made.place_contiguous(index)
    width, count = math.prod(table.shape[1:]), math.prod(index.shape)
    out = made.allocate(shape_of(given.node), table.dtype)
    types = f"{C_TYPES[table.dtype]}, {C_TYPES[index.dtype]}"
    wraps = "true" if name == "index" else "false"
    arguments: list[View | str] = [view, str(table.shape[0]), str(width), str(width), places, str(count), wraps]
    return made.call(f"take_rows<{types}>", arguments, out, count * width)


def _gather(made: Lowering, given: Operands) -> Value:
    value, index, dim = given.value("self"), given.value("index"), int(given.number("dim"))
    rank = len(value.shape)
    if not rank or dim % rank != rank - 1 or value.shape[:-1] != index.shape[:-1] or index.dtype is not torch.int64:
        raise UnsupportedError("numbers are gathered along an outer dimension")
    view, count, width, pitch = _arranged(made, value, [dim])
    places, out = made.place_contiguous(index), made.allocate(index.shape, value.dtype)
    arguments: list[View | str] = [view, str(count), str(width), str(pitch), places, str(index.shape[-1])]
    return made.call(f"gather_rows<{C_TYPES[value.dtype]}>", arguments, out, math.prod(index.shape))


def _bag(made: Lowering, given: Operands) -> Value:
    table, index, offsets = (given.value(name) for name in ("weight", "indices", "offsets"))
    mode = given.number("mode", 0)
    if mode not in (0, 1) or given.optional("per_sample_weights") is not None:
        raise UnsupportedError("a bag with weights, or of largest numbers")
    if given.number("padding_idx", -1) != -1 or given.number("include_last_offset", False):
        raise UnsupportedError("a bag with padding, or with a last offset")
    if index.dtype is not offsets.dtype or index.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError("bags with indices of several types")
    if not table.dtype.is_floating_point or len(index.shape) != 1:
        raise UnsupportedError("a bag of another kind")
    view, places, starts = (made.place_contiguous(one) for one in (table, index, offsets))
    width, bags, taken = table.shape[1], offsets.shape[0], index.shape[0]
    out = made.allocate((bags, width), table.dtype)
    types = f"{C_TYPES[table.dtype]}, {C_TYPES[index.dtype]}"
    sizes = [str(one) for one in (table.shape[0], width, width)]
    arguments: list[View | str] = [
        view,
        *sizes,
        places,
        str(taken),
        starts,
        str(bags),
        "true" if mode == 1 else "false",
    ]
    done = made.call(f"bag_rows<{types}>", arguments, out, taken * width)
    return Value((), table.dtype, parts=(done,))


def _check_errors(_made: Lowering, given: Operands) -> Value:
    """Do nothing after an inverse, whose code leaves singular matrices to the original, which raises."""
    if given.value("info").constant != 0:
        raise UnsupportedError("errors of an operator in no region")
    return Value((), torch.int32, parts=(given.value("info"),))


_LOWERINGS: dict[str, Lower] = {
    **dict.fromkeys(SAME, lambda _made, given: given.value("self")),
    **dict.fromkeys(("zeros", "ones", "full", "full_like", "zeros_like", "ones_like", "scalar_tensor"), _constant),
    **dict.fromkeys(("slice_scatter", "select_scatter"), _copy_into),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var"), _reduce),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("embedding", "index_select", "index"), _embedding),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bag),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("clamp", "hardtanh"), _clamp),
    "unbind": _unbind,
    "cat": _cat,
    "where": _where,
    "pow": _power,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "_to_copy": _convert,
    "arange": _arange,
    "argmax": _argmax,
    "any": _any,
    "native_layer_norm": _layer_norm,
    "gather": _gather,
    "_linalg_check_errors": _check_errors,
}
