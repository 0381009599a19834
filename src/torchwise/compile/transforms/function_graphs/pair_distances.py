"""Distances of all pairs of points are computed by a matrix product.

|x - y|² = |x|² + |y|² - 2 x·y. Written out as differences, n by m points of d coordinates are n·m·d numbers, which even
a compiler reads again for each pair. By a product, they are n·m. `torch.cdist` does so by itself from 25 points on.

The difference of large numbers has few digits: near points far from the origin are off by up to the rounding of |x|².
So it counts as lower precision, and verification refuses it where that matters. `clamp_min` keeps a rounding below 0
from becoming NaN under a root.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise.compile.transforms.function_graphs.nodes import (
    add_call,
    argument,
    is_only_for,
    list_between,
    name_of,
    replace,
    value_of,
    writes,
)

MIN_COORDINATES = 8
"""Coordinates from which on a product pays: with fewer, the pairs themselves are most of the work."""
NORMS = ("norm", "vector_norm", "linalg_norm", "linalg_vector_norm")
KNOWN = {"input", "dim", "keepdim", "p", "ord"}
"""Names of arguments that are read here. NumPy's `keepdims` means the same, and is left alone."""
MAX_SUM_ARGUMENTS, MAX_NORM_ARGUMENTS = 3, 4
"""Arguments by place that are read here. A norm has its dtype and an output behind them."""


def rewrite(graph: Graph) -> int:
    """Compute distances of all pairs by products, and return how often.

    Under autocast a product has another dtype than the differences, so there is none then.
    """
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return 0
    if any("autocast" in str(getattr(node.target, "__name__", "")) for node in graph.nodes):
        return 0
    return sum(_rewrite_sum(graph, node) for node in list(graph.nodes) if name_of(node) in ("sum", *NORMS))


def _rewrite_sum(graph: Graph, node: Node) -> bool:
    is_norm = name_of(node) in NORMS
    differences = _find_differences(node, is_norm=is_norm)
    if differences is None:
        return False
    one, other = differences.all_input_nodes
    points = value_of(one), value_of(other)
    if not _are_pairs(*points) or writes(node) or any(map(writes, list_between(differences, node))):
        return False
    with graph.inserting_before(node):
        squares = _multiply(graph, one, other)
        if is_norm:
            squares = add_call(graph, "sqrt", squares)
        if argument(node, 3 if is_norm else 2, "keepdim", False):
            squares = add_call(graph, "unsqueeze", squares, -1)
    replace(node, squares)
    return True


def _find_differences(node: Node, *, is_norm: bool) -> Node | None:
    """Return the differences whose squares, or whose norm, are taken over the last dimension, or None."""
    value = value_of(node.args[0]) if node.args else None
    # A square overflows in float16 from 256 on, and a difference of infinities is NaN.
    if value is None or not value.is_floating_point() or value.dtype is torch.float16:
        return None
    others = [given for name, given in node.kwargs.items() if name not in KNOWN and given is not None]
    if others or len(node.args) > (MAX_NORM_ARGUMENTS if is_norm else MAX_SUM_ARGUMENTS):
        return None
    last = (-1, value.dim() - 1, [-1], (-1,), [value.dim() - 1], (value.dim() - 1,))
    if is_norm:
        order, dim = argument(node, 1, "p", node.kwargs.get("ord")), argument(node, 2, "dim")
        if dim not in last or order not in (None, 2, 2.0, "fro"):
            return None
        return _as_difference(node.args[0], node)
    squares = node.args[0]
    if argument(node, 1, "dim") not in last or not isinstance(squares, Node) or not is_only_for(squares, node):
        return None
    name, given = name_of(squares), squares.args
    is_square = (
        name == "square"
        or (name == "pow" and len(given) == 2 and given[1] in (2, 2.0))
        or (name == "mul" and len(given) == 2 and given[0] is given[1])
    )
    return _as_difference(given[0], squares) if is_square and not writes(squares) else None


def _as_difference(node: Any, reader: Node) -> Node | None:
    is_difference = name_of(node) == "sub" and len(node.args) == 2 and not node.kwargs and not writes(node)
    is_of_tensors = is_difference and len(node.all_input_nodes) == 2  # two, and not one less itself
    return node if is_of_tensors and is_only_for(node, reader) else None


def _are_pairs(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether the differences are those of all pairs: [..., n, 1, d] and [..., 1, m, d], of one dtype."""
    if one is None or other is None or one.dtype != other.dtype or min(one.dim(), other.dim()) < 3:
        return False
    rows, columns, sizes = one.shape[-3:], other.shape[-3:], (one.shape[-1], other.shape[-1])
    if not all(isinstance(size, int) for size in (*rows, *columns)) or sizes[0] != sizes[1]:
        return False
    return rows[1] == 1 == columns[0] and rows[0] > 1 and columns[1] > 1 and sizes[0] >= MIN_COORDINATES


def _multiply(graph: Graph, one: Node, other: Node) -> Node:
    """Return the squared distances, [..., n, m], before the node at which the graph inserts."""
    rows, columns = add_call(graph, "squeeze", one, -2), add_call(graph, "squeeze", other, -3)
    by_row = add_call(graph, "unsqueeze", add_call(graph, "sum", add_call(graph, "square", rows), -1), -1)
    by_column = add_call(graph, "unsqueeze", add_call(graph, "sum", add_call(graph, "square", columns), -1), -2)
    products = add_call(graph, "matmul", rows, add_call(graph, "transpose", columns, -1, -2))
    sums = add_call(graph, "add", by_row, by_column)
    return add_call(graph, "clamp_min", add_call(graph, "sub", sums, add_call(graph, "mul", products, 2)), 0)
