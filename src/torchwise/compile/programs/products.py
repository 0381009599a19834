"""Products of matrices: each becomes a call of a function in `native/products.h`."""

from __future__ import annotations

import math

import torch

from torchwise.compile.programs.kernels import Loop
from torchwise.compile.programs.lowering import MAX_SHARED, Lower, Lowering, Operands, dtype_of, shape_of
from torchwise.compile.programs.values import C_TYPES, Value, View
from torchwise.errors import UnsupportedError

MAX_INVERTED = 16
"""Rows of the largest matrix that is inverted."""
SMALL = 16
"""Most rows and columns of matrices whose products the compiler unrolls."""
MAX_WORK = 1 << 22
"""Multiplications of a product, above which a library with threads is left to do it."""


def _mm(made: Lowering, given: Operands) -> Value:
    return _multiply(made, given, given.value("self"), given.value("mat2"), None)


def _addmm(made: Lowering, given: Operands) -> Value:
    if given.number("beta", 1) != 1 or given.number("alpha", 1) != 1:
        raise UnsupportedError("a product with factors")
    return _multiply(made, given, given.value("mat1"), given.value("mat2"), given.value("self"))


def _bmm(made: Lowering, given: Operands) -> Value:
    """Multiply matrix by matrix, in one call."""
    a, b = made.place(given.value("self")), made.place(given.value("mat2"))
    out = made.allocate(shape_of(given.node), dtype_of(given.node))
    _add_product(made, a, b, None, out)
    return Value(out.shape, out.dtype, out)


def _multiply(made: Lowering, given: Operands, a: Value, b: Value, bias: Value | None) -> Value:
    out = made.allocate(shape_of(given.node), dtype_of(given.node))
    added = made.place(bias) if bias is not None else None
    plain = added is None or (math.prod(added.shape) == out.shape[1] == added.shape[-1] and added.strides[-1] == 1)
    _add_product(made, made.place(a), made.place(b), added if plain else None, out)
    product = Value(out.shape, out.dtype, out)
    if plain or added is None:
        return product
    number, names = made._join(out.shape, [product, Value(added.shape, added.dtype, added)])
    loop = made.kernels[number]
    assert isinstance(loop, Loop)
    return Value(out.shape, out.dtype, None, number, loop.let(out.dtype, f"{names[0]} + {names[1]}"))


def _add_product(made: Lowering, a: View, b: View, bias: View | None, out: View) -> None:
    """Add the product of two matrices, or of each pair of many."""
    (m, k), n, kind = a.shape[-2:], b.shape[-1], C_TYPES[out.dtype]
    count = out.shape[0] if len(out.shape) == 3 else 1
    if k > MAX_SHARED or count * m * n * k > MAX_WORK or not out.dtype.is_floating_point:
        raise UnsupportedError(f"a product of {m} by {k} by {n}, which a library does as well")
    if k != 1 and a.strides[-1] != 1:
        a = made.place_contiguous(Value(a.shape, a.dtype, a))
    by_rows = k == 1 or b.strides[-2] == 1
    if not by_rows and n != 1 and b.strides[-1] != 1:
        b = made.place_contiguous(Value(b.shape, b.dtype, b))
    if count > 1 and b.strides[0] == 0 and a.strides[0] == m * a.strides[1]:  # one matrix for all: they are more rows
        a, b = View(a.buffer, (count * m, k), a.strides[1:], a.offset), View(b.buffer, (k, n), b.strides[1:], b.offset)
        m, count = count * m, 1
    function = f"product_by_{'rows' if by_rows else 'columns'}<{kind}>"
    sizes = [m, n, k, a.strides[-2], b.strides[-1] if by_rows else b.strides[-2]]
    added: View | str = f"(const {kind}*)nullptr" if bias is None else bias
    arguments: list[View | str] = [a, b, added, *map(str, sizes)]
    steps = [count, a.strides[0], b.strides[0]]
    if len(a.shape) == 3 and max(m, n, k) <= SMALL:
        function = f"small_products<{kind}, {'true' if by_rows else 'false'}, {m}, {n}, {k}>"
        arguments = [a, b, *map(str, (*sizes[3:], *steps))]
    elif len(a.shape) == 3:
        function = f"many_products<{kind}, {'true' if by_rows else 'false'}>"
        arguments = [a, b, *map(str, (*sizes, *steps))]
    made.call(function, arguments, out, 2 * count * m * n * k)


def _invert(made: Lowering, given: Operands) -> Value:
    """Invert small matrices. That of a singular one is left to PyTorch, which tells it."""
    value = given.value("A")
    size = value.shape[-1]
    if size > MAX_INVERTED or given.number("check_errors", False):
        raise UnsupportedError(f"the inverse of a matrix of {size} by {size}")
    out = made.allocate(value.shape, value.dtype)
    count = math.prod(value.shape[:-2])
    arguments: list[View | str] = [made.place_contiguous(value), str(count), str(size)]
    done = made.call(f"inverses<{C_TYPES[value.dtype]}>", arguments, out, 2 * count * size**3)
    return Value((), value.dtype, parts=(done, Value(value.shape[:-2], torch.int32, constant=0)))


PRODUCTS: dict[str, Lower] = {"mm": _mm, "addmm": _addmm, "bmm": _bmm, "linalg_inv_ex": _invert}
