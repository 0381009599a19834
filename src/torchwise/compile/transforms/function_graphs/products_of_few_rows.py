"""Products of few rows with large weights become calls of an operator of our own (`compile/few_rows`).

A model that decodes one token multiplies each of its weights by one row. Such a product takes as long as reading the
weight. Libraries are made for many rows, and read it more slowly than a copy does. The operator's kernel is made for
this case. It also has less to launch and to write down: products of the same rows are one kernel, without joined copies
of their weights. An activation is in it, a gate (https://arxiv.org/abs/2002.05202), a residual, and a norm by the root
of the mean square before it. Weights of few bits with a scale for each output are read as such.

In float32, libraries multiply without tensor cores, and in several kernels if there are few outputs. So the operator
takes more rows there. Cells of recurrent nets become products for it.

Attention of few rows becomes an operator of our own, too (`attention_of_few_rows.py`). Other products of few rows with
each matrix of a batch are written as sums in float32. Inductor makes one kernel of such a sum with the work around it,
where a library would launch a kernel for matrices that are mostly empty.

Each number of the answer is the same sum as before, in float32.
"""

from __future__ import annotations

import bisect
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchwise.compile.few_rows.forms import MAX_ROWS, MAX_SUMMED_ROWS
from torchwise.compile.few_rows.operator import LOW_BITS, TYPES, products_of_few_rows
from torchwise.compile.transforms.function_graphs import attention_of_few_rows
from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    add_call,
    argument,
    name_of,
    same_sizes,
    value_of,
    writes,
)
from torchwise.compile.transforms.function_graphs.product_epilogues import CASTS, VIEWS, Epilogue, find_epilogue
from torchwise.compile.transforms.function_graphs.recurrent_cells import expand_cells, has_rnn_of
from torchwise.compile.transforms.function_graphs.rms_norms import RMSNorm, find_rms_norm

MIN_BYTES = 1 << 17
"""Bytes of the weights of a kernel from which a graph may gain something. With less, its start is most of its time.

Where one kernel has as many, products with smaller weights have kernels, too: for those of few outputs, libraries may
have three or four kernels each."""
MAX_JOINED = 4
"""Products of a kernel: those of queries, keys and values, and one more."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight (outputs, inputs) as a node, or as bytes that are seen as another type, or transposed."""

    source: Node
    seen_as: torch.dtype | None = None
    is_transposed: bool = False

    def add(self, graph: Graph, moved: dict[Node, Node]) -> Node:
        """Return its node, where others may be in place of some."""
        node = moved.get(self.source, self.source)
        node = node if self.seen_as is None else add_call(graph, "view", node, self.seen_as)
        return add_call(graph, "t", node) if self.is_transposed else node


@dataclass(frozen=True, slots=True)
class Product:
    """A product of few rows.

    Attributes:
        node: the product.
        rows: its input, which may be the same numbers in another shape.
        weight: it.
        scale: a node with the factors of its outputs, (outputs,), or None.
        bias: a node, (outputs,), or None.
        outputs: their number.
        nbytes: bytes of the weight.
        is_turned: whether the weight lies in memory with its outputs side by side.
        kind: those that are equal can share a kernel.
    """

    node: Node
    rows: Node
    weight: Weight
    scale: Node | None
    bias: Node | None
    outputs: int
    nbytes: int
    is_turned: bool
    kind: tuple[Any, ...]

    @property
    def sources(self) -> list[Node]:
        """The nodes that it reads beside the rows."""
        return [one for one in (self.weight.source, self.scale, self.bias) if one is not None]


@torch.no_grad()
def rewrite(graph: Graph) -> int:
    """Replace products of few rows, and return the number of kernels that compute them."""
    expand_cells(graph, _is_large_cell)
    places = {node: place for place, node in enumerate(graph.nodes)}
    written = [place for node, place in places.items() if writes(node)]
    groups = _find_groups(places, written)
    if all(sum(one.nbytes for one in group) < MIN_BYTES for group in groups):
        return 0
    kernels = [_plan_kernel(group, places, written) for group in groups]
    moved: dict[Node, Node] = {}
    for kernel in kernels:
        _replace(graph, kernel, moved)
    attention_of_few_rows.rewrite(graph)
    for node in list(graph.nodes):
        if _is_of_batch(node):
            _write_sum(graph, node)
    return len(groups)


@torch.no_grad()
def multiplies_few_rows(graph: Graph) -> bool:
    """Return whether there are such products, or RNNs that would have them if they were compiled."""
    return has_rnn_of(graph, _is_large_cell) or rewrite(graph) > 0


def _find_groups(places: dict[Node, int], written: Sequence[int]) -> list[list[Product]]:
    """Return the products that can share a kernel, in their order: of the same rows, with no write in between."""
    groups: dict[Any, list[list[Product]]] = defaultdict(list)
    for node in places:
        product = _read(node, places, written)
        if product is None:
            continue
        known = groups[(product.rows, product.kind)]
        if not known or not _may_join(known[-1], product, places, written):
            known.append([])
        known[-1].append(product)
    return [group for known in groups.values() for group in known]


def _is_large_cell(rows: Tensor, weight: Tensor) -> bool:
    """Whether a cell of a recurrent net has a product of few rows with a large weight."""
    is_large = weight.numel() * weight.element_size() >= MIN_BYTES
    is_known = _has_numbers(rows) and _has_numbers(weight) and rows.dtype in TYPES
    return is_known and is_large and 0 < len(rows) <= _find_limit(rows.dtype, has_low_bits=False)


def _find_limit(dtype: torch.dtype, *, has_low_bits: bool) -> int:
    """Return the rows up to which the operator may be faster.

    Libraries are made for more rows than one where both factors have 16 bits. In float32 they use no tensor cores.
    """
    return MAX_ROWS if dtype is torch.float32 or has_low_bits else MAX_SUMMED_ROWS


def _may_join(group: Sequence[Product], product: Product, places: dict[Node, int], written: Sequence[int]) -> bool:
    """Whether a product may be computed where the first of a group is."""
    first = places[group[0].node]
    is_there = all(places[source] < first for source in product.sources)
    return len(group) < MAX_JOINED and is_there and not _has_write(first, places[product.node], written)


def _has_write(start: int, end: int, written: Sequence[int]) -> bool:
    return bisect.bisect_left(written, start) < bisect.bisect_left(written, end)


def _read(node: Node, places: dict[Node, int], written: Sequence[int]) -> Product | None:
    """Return the product that a node computes, if it is of few rows and the operator can compute it."""
    name, bias, scale = name_of(node), None, None
    if name == "linear":
        rows, given, bias = (argument(node, *one) for one in enumerate(("input", "weight", "bias")))
        is_transposed = False
    elif name == "matmul" and len(node.args) == 2 and not node.kwargs:
        (rows, given), is_transposed = node.args, True
    elif name == "addmm" and len(node.args) == 3 and not node.kwargs:
        (bias, rows, given), is_transposed = node.args, True
    else:
        return None
    values = value_of(node), value_of(rows), value_of(given)
    if writes(node) or any(one is None or not _has_numbers(one) for one in values):
        return None
    answer, x, matrix = values
    assert answer is not None and x is not None and matrix is not None  # noqa: PT018
    if answer.requires_grad:  # the operator has no gradient
        return None
    if matrix.dim() != 2 or x.dim() == 0 or x.numel() == 0:
        return None
    length, outputs = matrix.shape if is_transposed else matrix.shape[::-1]
    weight, kept = Weight(given, None, is_transposed), matrix.t() if is_transposed else matrix
    if not is_transposed and (found := _read_low_bits(given, x.dtype, places, places[node], written)):
        weight, scale, kept = found
    fits = (
        x.numel() <= _find_limit(x.dtype, has_low_bits=scale is not None) * x.shape[-1]
        and x.dtype is answer.dtype
        and x.dtype in TYPES
        and kept.dtype in ((x.dtype,) if scale is None else LOW_BITS)
        and (kept.is_contiguous() or kept.t().is_contiguous())
        and (bias is None or _is_vector(bias, outputs))
        and outputs > 0
    )
    if not fits:
        return None
    source = _find_source(rows, length, places, places[node], written)
    kind = (length, x.dtype, kept.dtype, kept.is_contiguous(), *(_dtype_of(one) for one in (scale, bias)))
    nbytes = kept.numel() * kept.element_size()
    return Product(node, source, weight, scale, bias, outputs, nbytes, not kept.is_contiguous(), kind)


def _read_low_bits(
    given: Node, dtype: torch.dtype, places: dict[Node, int], end: int, written: Sequence[int]
) -> tuple[Weight, Node, Tensor] | None:
    """Return a weight of few bits, its scales, and the value of the weight, if a node multiplies these.

    Nothing is written between their first use and the end, and nothing is rounded more than rows of the dtype are.
    """

    def is_fine(node: Node) -> bool:
        return _dtype_of(node) in (dtype, torch.float32, torch.float64)

    product = _strip(given, lambda node: _is_cast(node) and is_fine(node))
    if name_of(product) != "mul" or len(product.args) != 2 or writes(product) or not is_fine(product):
        return None
    for one, other in (product.args, product.args[::-1]):
        source = _strip(one, _is_cast)
        weight, value = Weight(source), value_of(source)
        if value is None or value.dtype not in LOW_BITS or value.dim() != 2:
            continue
        if name_of(source) == "view" and len(source.args) == 2 and source.args[1] is value.dtype:
            weight = Weight(source.args[0], value.dtype)
        scale = _strip(other, lambda node: (_is_cast(node) and is_fine(node)) or _is_turned(node))
        column = value_of(other)
        is_column = column is not None and same_sizes(column.shape, (value.shape[0], 1))
        if is_column and _is_vector(scale, value.shape[0]):
            began = min(places[user] for read in (source, scale) for user in read.users)
            return None if _has_write(began, end, written) else (weight, scale, value)
    return None


def _strip(given: Any, is_passed: Callable[[Node], bool]) -> Any:
    """Return the node that a chain of such functions begins with."""
    while name_of(given) and given.args and isinstance(given.args[0], Node) and is_passed(given) and not writes(given):
        given = given.args[0]
    return given


def _is_cast(node: Node) -> bool:
    """Whether a node has the numbers of its input on the same device, in a type of floats that rows may have."""
    made, given = value_of(node), value_of(node.args[0])
    if made is None or given is None or made.device != given.device:
        return False
    return name_of(node) in CASTS and made.dtype in (*TYPES, torch.float64)


def _is_turned(node: Node) -> bool:
    """Whether a node has the numbers of its input in the same order, with other dimensions."""
    if name_of(node) == "getitem":
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        return all(one is None or one is ... or (isinstance(one, slice) and one == slice(None)) for one in index)
    # The same bytes in another type are other numbers.
    return name_of(node) in ("unsqueeze", "view", "reshape") and _dtype_of(node) is _dtype_of(node.args[0])


def _is_vector(node: Any, size: int) -> bool:
    value = value_of(node)
    is_known = value is not None and same_sizes(value.shape, (size,))
    return value is not None and is_known and value.is_floating_point() and value.is_contiguous()


def _dtype_of(node: Any) -> torch.dtype | None:
    value = value_of(node)
    return None if value is None else value.dtype


def _has_numbers(value: Tensor) -> bool:
    """Whether a tensor lies in memory as usual, and its sizes are numbers."""
    return value.layout is torch.strided and all(isinstance(size, int) for size in value.shape)


def _find_source(rows: Node, length: int, places: dict[Node, int], end: int, written: Sequence[int]) -> Node:
    """Return the node of which rows are a view, if it has the same rows, so that others of it are known as equal."""
    while name_of(rows) in VIEWS and not writes(rows):
        source: Any = rows.args[0] if rows.args else None
        value = value_of(source)
        is_same = value is not None and value.dim() > 0 and _has_numbers(value) and value.shape[-1] == length
        if not is_same or _dtype_of(rows) is not _dtype_of(source) or _has_write(places[rows], end, written):
            break  # a copy, perhaps, from before the write
        rows = source
    return rows


@dataclass(frozen=True, slots=True)
class Kernel:
    """The work of one kernel: products of the same rows, the norm before them, and the work behind them.

    It is computed where `first` is, the first of its products.
    """

    first: Node
    products: tuple[Product, ...]
    norm: RMSNorm | None
    epilogue: Epilogue | None

    @property
    def results(self) -> list[Node]:
        """The nodes in whose place its answers are."""
        return [one.node for one in self.products] if self.epilogue is None else [self.epilogue.nodes[-1]]


def _plan_kernel(group: Sequence[Product], places: dict[Node, int], written: Sequence[int]) -> Kernel:
    first = places[group[0].node]

    def is_ready(node: Node, reader: Node) -> bool:
        return places[node] < first and not _has_write(first, places[reader], written)

    epilogue = find_epilogue([one.node for one in group], is_ready)
    products = tuple(group) if epilogue is None else tuple(group[place] for place in epilogue.order)
    norm = None if group[0].is_turned else find_rms_norm(group[0].rows)  # the kernel has no norm for turned weights
    if norm is not None:
        is_same = not _has_write(min(places[node] for node in norm.nodes), first, written)
        if not is_same or not _is_read_only_by(norm.nodes[-1], {one.node for one in group}):
            norm = None
    return Kernel(group[0].node, products, norm, epilogue)


def _is_read_only_by(node: Node, readers: set[Node]) -> bool:
    """Whether only these nodes read a node or its views, so that nothing else needs its value."""
    return all(
        user in readers or (name_of(user) in VIEWS and not writes(user) and _is_read_only_by(user, readers))
        for user in node.users
    )


def _replace(graph: Graph, kernel: Kernel, moved: dict[Node, Node]) -> None:
    """Replace the products of a kernel, and note the nodes in whose place there are others."""

    def find(node: Node | None) -> Node | None:
        return None if node is None else moved.get(node, node)

    given, norm, epilogue = kernel.products, kernel.norm, kernel.epilogue
    rows = find(given[0].rows if norm is None else norm.source)
    assert rows is not None
    with graph.inserting_before(kernel.first):
        weights = [one.weight.add(graph, moved) for one in given]
        scales = [find(one.scale) for one in given if one.scale is not None]
        biases = [find(one.bias) for one in given if one.bias is not None]
        arguments: tuple[Any, ...] = (rows, weights, scales, biases, "" if epilogue is None else epilogue.activation)
        if norm is not None or (epilogue is not None and epilogue.added is not None):
            arguments += (None if epilogue is None else find(epilogue.added),)
        if norm is not None:
            arguments += (find(norm.gain), norm.epsilon)
        call = graph.call_function(products_of_few_rows, arguments)
        for place, node in enumerate(kernel.results):
            part, x = graph.call_function(operator.getitem, (call, place)), value_of(rows)
            assert x is not None
            shape, wanted = (*x.shape[:-1], given[place].outputs), node.meta[VALUE]
            part.meta[VALUE] = x.new_empty(shape, dtype=wanted.dtype)
            if not same_sizes(shape, wanted.shape):
                part = add_call(graph, "view", part, tuple(wanted.shape))
            node.replace_all_uses_with(part)
            moved[node] = part
    for node in reversed(kernel.results if epilogue is None else epilogue.nodes):
        graph.erase_node(node)
    for node in reversed(() if norm is None else norm.nodes):
        if not node.users:
            graph.erase_node(node)


def _is_of_batch(node: Node) -> bool:
    """Whether a node multiplies a batch of matrices by few rows each."""
    if name_of(node) != "matmul" or len(node.args) != 2 or node.kwargs or writes(node):
        return False
    values = value_of(node), *map(value_of, node.args)
    if any(one is None or not _has_numbers(one) or one.dim() < 3 for one in values):
        return False
    dtypes = {one.dtype for one in values if one is not None}
    answer = values[0]
    return answer is not None and 0 < answer.shape[-2] <= MAX_SUMMED_ROWS and len(dtypes) == 1 and dtypes <= {*TYPES}


def _write_sum(graph: Graph, node: Node) -> None:
    """Write a product of a batch as a sum of products in float32."""
    rows, matrix = node.args
    with graph.inserting_before(node):
        rows = add_call(graph, "unsqueeze", add_call(graph, "float", rows), -1)
        matrix = add_call(graph, "unsqueeze", add_call(graph, "float", matrix), -3)
        total = add_call(graph, "sum", add_call(graph, "mul", rows, matrix), -2)
        found = add_call(graph, "to", total, node.meta[VALUE].dtype)
    node.replace_all_uses_with(found)
    graph.erase_node(node)
