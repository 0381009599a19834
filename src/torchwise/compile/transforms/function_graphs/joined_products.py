"""Products of one input with several weights become one product with the joined weights.

Models multiply the same rows by the weights of queries, keys and values, or of the two halves of a SwiGLU
(https://arxiv.org/abs/2002.05202). One product reads the rows once, is launched once, and has more columns to share
among cores. Each number of the answer is the same sum as before.

The joined weights depend on weights alone. So they are marked (`nodes.ONCE`) to be computed once and not in each call.
They are copies, and the model keeps its own: these weights are in memory twice.

Only parameters are joined. Weights that the call computes stay as they are, such as those of a parametrization or of
few bits. So do products between which something is written, and a bias that is no parameter.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from torchwise._torch.functions import is_operator_that_writes
from torchwise.compile.transforms.function_graphs.nodes import (
    ONCE,
    VALUE,
    add_call,
    argument,
    is_weight,
    name_of,
    same_sizes,
    value_of,
    writes,
)

ROWS, COLUMNS = 0, 1
"""The dimension of a weight in which it has its outputs, as `linear` and as `matmul` read it."""
TRANSPOSED = ("t", "T", "mT", "transpose")
PRODUCTS = ("linear", "matmul", "addmm")
PURE = (
    *("view", "reshape", "flatten", "unflatten", "getitem", "unsqueeze", "squeeze", "transpose", "permute"),
    *("contiguous", "to", "float", "half", "bfloat16"),
)
"""Functions whose result is their first input, seen or written down in another way."""
STORAGE = (
    *("as_strided", "as_strided_copy", "as_strided_scatter", "storage", "untyped_storage", "storage_offset"),
    *("data_ptr", "set", "resize", "resize_as", "stride", "is_contiguous"),
)
"""Functions that see how a tensor lies in memory, as does a view of another dtype."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of rows with a weight.

    Attributes:
        node: the product.
        rows: its input.
        weight: a parameter with two dimensions.
        bias: a parameter, or None.
        dim: the dimension of the outputs in the weight.
    """

    node: Node
    rows: Node
    weight: Node
    bias: Node | None
    dim: int

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return int(_known_value(self.weight).shape[self.dim])


@torch.no_grad()
def rewrite(graph: Graph) -> int:
    """Join the products of each input, and return the number of joined products."""
    groups = _find_groups(graph)
    for group in groups:
        _join(graph, group)
    return len(groups)


def _find_groups(graph: Graph) -> list[list[Product]]:
    """Return the products that can be one, in their order: of the same rows, which nothing writes to in between."""
    groups: dict[Any, dict[Node, Product]] = defaultdict(dict)
    equal, first = dict[str, Node](), dict[Node, tuple[Node, int]]()  # equal views count as the first of them
    places = {node: place for place, node in enumerate(graph.nodes)}
    written: list[int] = []  # in order, the place of each from which on there is memory that it may write to

    def count_writes(node: Node) -> int:
        return bisect.bisect_right(written, places[node])

    def find_first(node: Node) -> Node:
        found, count = first.get(node, (node, 0))
        return found if count == count_writes(node) else node  # of equal copies, one may be written

    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        if writes(node):
            bisect.insort(written, places.get(_find_written(node), -1))
            continue
        if name_of(node) in PURE and node.all_input_nodes:
            given = torch.fx.map_arg((node.args, node.kwargs), find_first)
            key = repr(([*map(count_writes, node.all_input_nodes)], node.target, given))
            first[node] = equal.setdefault(key, node), count_writes(node)
        product = _read(node)
        if product is not None:
            rows = find_first(product.rows)
            dtypes = _known_value(node).dtype, _known_value(product.weight).dtype
            # Of two products with one weight, the other stays: it is no work that joining saves.
            groups[(rows, count_writes(rows), product.dim, *dtypes)].setdefault(product.weight, product)
    return [list(group.values()) for group in groups.values() if len(group) > 1]


def _find_written(node: Node) -> Any:
    """Return the product whose memory alone a function writes to, or None if it may write to other memory."""
    if node.kwargs.get("out") is not None or is_operator_that_writes(node.target):
        return None
    found: Any = node
    while isinstance(found, Node) and (name_of(found) in PURE or writes(found)) and found.args:
        found = found.args[0]
    return found if name_of(found) in PRODUCTS else None


def _read(node: Node) -> Product | None:
    """Return the product that a node computes, if its weight and its bias are parameters."""
    name, bias, dim = name_of(node), None, ROWS
    if writes(node) or value_of(node) is None:
        return None
    if name == "linear":
        rows, weight, bias = (argument(node, *one) for one in enumerate(("input", "weight", "bias")))
    elif name == "matmul" and len(node.args) == 2 and not node.kwargs:
        rows, given = node.args
        weight, dim = _read_transposed(given)
    elif name == "addmm" and len(node.args) == 3 and not node.kwargs:
        bias, rows, given = node.args
        weight, dim = _read_transposed(given)
    else:
        return None
    if not isinstance(rows, Node) or value_of(rows) is None or not _has_sizes(weight, 2):
        return None
    product = Product(node, rows, weight, bias, dim)
    return product if bias is None or _fits(bias, product) else None


def _read_transposed(given: Any) -> tuple[Any, int]:
    """Return the weight that a node transposes, or the node itself, and the dimension of the outputs in it."""
    source = given.args[0] if name_of(given) in TRANSPOSED and given.args else None
    if source is None or not _has_sizes(source, 2):
        return given, COLUMNS
    dims = given.args[1:] if name_of(given) == "transpose" else (0, 1)
    is_swap = len(dims) == 2 and {dim % 2 for dim in dims if isinstance(dim, int)} == {0, 1}
    return (source, ROWS) if is_swap else (given, COLUMNS)


def _has_sizes(node: Any, dims: int) -> bool:
    """Whether a node is a parameter with so many dimensions, whose sizes are numbers."""
    return (
        is_weight(node) and node.meta[VALUE].dim() == dims and all(isinstance(n, int) for n in node.meta[VALUE].shape)
    )


def _fits(bias: Any, product: Product) -> bool:
    if not _has_sizes(bias, 1):
        return False
    value = _known_value(bias)
    return value.shape[0] == product.outputs and value.dtype is _known_value(product.weight).dtype


def _join(graph: Graph, group: Sequence[Product]) -> None:
    first, reads_storage = group[0], any(map(_reads_storage, graph.nodes))
    with graph.inserting_before(first.node):
        weight = _add_once(graph, torch.cat, [one.weight for one in group], first.dim)
        product = _multiply(graph, first, weight, _join_biases(graph, group))
        value = _known_value(first.node)  # under autocast, no other tensor has its dtype
        product.meta[VALUE] = value.new_empty((*value.shape[:-1], sum(one.outputs for one in group)))
        parts, start = [], 0
        for one in group:
            part = add_call(graph, "narrow", product, -1, start, one.outputs)
            if reads_storage or not _may_have_gaps(one.node, part.meta[VALUE]):
                # One row has no gaps, and yet the others' numbers beside it.
                part = add_call(graph, "clone" if reads_storage else "contiguous", part)
            parts.append(part)
            start += one.outputs
    for one, part in zip(group, parts, strict=True):
        one.node.replace_all_uses_with(part)
        graph.erase_node(one.node)


def _multiply(graph: Graph, first: Product, weight: Node, bias: Node | None) -> Node:
    # Those of the node: another group may have put a part of its product in the place of `first.rows`.
    rows = first.node.args[1] if name_of(first.node) == "addmm" else argument(first.node, 0, "input")
    if first.dim == ROWS:
        return graph.call_function(functional.linear, (rows, weight, bias))
    if bias is None:
        return graph.call_function(torch.matmul, (rows, weight))
    return graph.call_function(torch.addmm, (bias, rows, weight))


def _join_biases(graph: Graph, group: Sequence[Product]) -> Node | None:
    """Return the joined biases, with zeros for products that have none, or None if all have none."""
    if all(one.bias is None for one in group):
        return None
    biases = [one.bias or _add_once(graph, "new_zeros", one.weight, (one.outputs,)) for one in group]
    return _add_once(graph, torch.cat, biases, 0)


def _add_once(graph: Graph, target: Callable[..., Any] | str, *args: Any) -> Node:
    """Return a node that is computed once, with its value: a new one, or that of a group before."""
    kind = "call_method" if isinstance(target, str) else "call_function"
    nodes: list[Node] = graph.find_nodes(op=kind, target=target)
    for known in nodes:
        if ONCE in known.meta and known.args == args:
            return known
    made = graph.create_node(kind, target, args)
    made.meta |= {ONCE: True, VALUE: _compute(made, {})}
    return made


def _reads_storage(node: Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0].strip("_")
    given = (*node.args, *node.kwargs.values())
    return name in STORAGE or (name == "view" and any(isinstance(one, torch.dtype) for one in given))


def _may_have_gaps(node: Node, value: Any) -> bool:
    """Whether all readers of a node may read this value in its place, whose rows do not lie one after the other.

    A view may refuse it, and an output would have other strides than eager's. Each reader is run on tensors without
    data. If its result lies in memory as before, nothing behind it changes.
    """
    for reader in node.users:
        if not name_of(reader):  # the output, or a function that is not PyTorch's
            return False
        try:
            made = _compute(reader, {node: value})
        except Exception:  # a function may refuse the strides by any error
            return False
        if not _lies_alike(made, reader.meta.get(VALUE)) and not _may_have_gaps(reader, made):
            return False
    return True


def _compute(node: Node, others: dict[Node, Any]) -> Any:
    """Return a node's value, with other values than their own for some of its inputs."""

    def find(given: Node) -> Any:
        return others[given] if given in others else given.meta[VALUE]

    args: Any = torch.fx.map_arg(node.args, find)
    kwargs: Any = torch.fx.map_arg(node.kwargs, find)
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _lies_alike(made: Any, known: Any) -> bool:
    if isinstance(made, torch.Tensor) and isinstance(known, torch.Tensor):
        return same_sizes(made.stride(), known.stride())
    if isinstance(made, (tuple, list)) and isinstance(known, (tuple, list)) and len(made) == len(known):
        return all(map(_lies_alike, made, known))
    return not isinstance(made, torch.Tensor)


def _known_value(node: Node) -> torch.Tensor:
    value: torch.Tensor = node.meta[VALUE]
    return value
