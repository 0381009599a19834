"""The operators that regions take, each by a function that adds its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchwise.compile.programs import pointwise
from torchwise.compile.programs.kernels import Loop
from torchwise.compile.programs.lookups import LOOKUPS
from torchwise.compile.programs.lowering import (
    Lower,
    Lowering,
    Operands,
    Scalar,
    dtype_of,
    name_of,
    shape_of,
)
from torchwise.compile.programs.products import PRODUCTS
from torchwise.compile.programs.reductions import REDUCTIONS
from torchwise.compile.programs.values import C_TYPES, Value, View
from torchwise.errors import UnsupportedError

VIEWS = (
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "alias", "detach", "diagonal"),
)
"""Operators whose output is a part of the same memory. `as_strided` is none: it counts from the storage's beginning."""
DRAWS = {"draw_normal": "normal_of", "draw_uniform": "uniform_of"}
"""Functions that draw random numbers, and their names in `native/numbers.h`."""
SAME = ("clone", "lift_fresh_copy", "contiguous")
"""Operators whose output has the same numbers."""


def lower(made: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Value]) -> Value:
    """Add the kernels of a node, and return its value.

    Raises:
        UnsupportedError: there are none for it, or they compute another shape or type than PyTorch does.
    """
    found, wanted = _lower(made, node, values), node.meta.get("val")
    if not isinstance(wanted, torch.Tensor):
        return found
    if found.parts or (found.shape, found.dtype) != (tuple(wanted.shape), wanted.dtype):
        raise UnsupportedError(f"{node.target} returns {wanted.dtype}, and its code {found.dtype}")
    return found


def _lower(made: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Value]) -> Value:
    name = name_of(node)
    if name == "getitem":
        return _take_part(node, values)
    if name == "copy_to_strides":  # an output, which is written to memory with these strides
        return values[node.all_input_nodes[0]]
    if name in DRAWS:
        seed, stream, _ = node.args
        return made.draw(node, values[seed], int(stream), DRAWS[name])  # type: ignore[index, arg-type]
    given = Operands(node, values)
    found = _LOWERINGS.get(name)
    if found is not None:
        return found(made, given)
    if name in VIEWS:
        return _view(made, given)
    return _compute(made, given, name)


def is_known(node: torch.fx.Node) -> bool:
    """Whether there may be kernels for a node."""
    name = name_of(node)
    return name in ("getitem", "copy_to_strides", *DRAWS) or name in _LOWERINGS or name in VIEWS or name in _POINTWISE


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
        found = find_view(node, view)
    except RuntimeError:  # such a view needs the numbers in another order
        found = find_view(node, made.place_contiguous(value))
    return Value(found.shape, found.dtype, found)


def find_view(node: torch.fx.Node, view: View) -> View:
    """Return the part of memory that an operator returns a view of. PyTorch finds its strides."""
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
            text = f"{function}({bound}, {text})"  # of zeros with two signs the second
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
    node, value = given.node, given.value("src" if name_of(given.node) == "copy" else "self")
    to = dtype_of(node)
    if to is value.dtype and value.shape == shape_of(node):
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


def _check_errors(_made: Lowering, given: Operands) -> Value:
    """Do nothing after an inverse, whose code leaves singular matrices to the original, which raises."""
    if given.value("info").constant != 0:
        raise UnsupportedError("errors of an operator in no region")
    return Value((), torch.int32, parts=(given.value("info"),))


_LOWERINGS: dict[str, Lower] = {
    **PRODUCTS,
    **REDUCTIONS,
    **LOOKUPS,
    **dict.fromkeys(SAME, lambda _made, given: given.value("self")),
    **dict.fromkeys(("zeros", "ones", "full", "full_like", "zeros_like", "ones_like", "scalar_tensor"), _constant),
    **dict.fromkeys(("slice_scatter", "select_scatter"), _copy_into),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("clamp", "hardtanh"), _clamp),
    "unbind": _unbind,
    "cat": _cat,
    "where": _where,
    "pow": _power,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    **dict.fromkeys(("_to_copy", "copy"), _convert),
    "arange": _arange,
    "_linalg_check_errors": _check_errors,
}
