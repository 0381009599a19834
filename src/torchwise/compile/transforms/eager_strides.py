"""Outputs with eager's layout in memory, if Inductor by itself would lay them out otherwise.

Inductor's own form of `cat` is a copy of the one tensor that is not empty, in that tensor's strides. Eager's is
contiguous (torch 2.11 to 2.13). Every KV cache of Transformers begins that way. Dynamo, which traces before such forms
take the place of operators, knows eager's strides. So its graph states the layout of each of its outputs. These are
also the tensors that a call leaves in objects and modules, such as a cache. An output that has the layout already costs
nothing.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch.fx import Graph, Node, Proxy

from torchwise._torch.symbols import is_surely
from torchwise.compile.transforms.function_graphs.nodes import argument, name_of, value_of

Order = tuple[int, ...]
"""The dimensions, from the one with the longest stride on."""
Laid = TypeVar("Laid", torch.Tensor, Proxy)


def rewrite(graph: Graph) -> int:
    """State the layout of each output that the graph computes, and return the number of these."""
    output = graph.output_node()
    orders = {node: _order_of_node(node) for node in output.all_input_nodes}
    laid = {node: order for node, order in orders.items() if order is not None}
    for node, order in laid.items():
        with graph.inserting_before(output):
            output.replace_input_with(node, lay_out(Proxy(node), order).node)
    return len(laid)


def _order_of_node(node: Node) -> Order | None:
    value = value_of(node)
    return None if value is None or node.op in ("placeholder", "get_attr") else order_of(value)


def joins_one_to_empty(graph: Graph) -> bool:
    """Whether a call joins one tensor that is not contiguous to empty ones alone, as a KV cache begins."""
    return any(_is_copy(node) for node in graph.nodes if name_of(node) in ("cat", "concat", "concatenate"))


def _is_copy(node: Node) -> bool:
    joined = map(value_of, argument(node, 0, "tensors", ()))
    full = [value for value in joined if value is None or value.numel() > 0]
    return len(full) == 1 and full[0] is not None and not full[0].is_contiguous()


def order_of(tensor: torch.Tensor) -> Order | None:
    """Return the order of a tensor's dimensions, or None if it has gaps or repetitions, or no strides.

    Sizes of a graph may vary. The order holds for all of them, or it is None.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    plain, strides = tuple(range(tensor.dim())), tensor.stride()
    order: list[int] = []
    for dim in plain:
        place = sum(is_surely(strides[other] >= strides[dim]) for other in order)
        order.insert(place, dim)
    return next((one for one in (plain, tuple(order)) if _lies_in(tensor, one)), None)


def _lies_in(tensor: torch.Tensor, order: Order) -> bool:
    """Whether a tensor's dimensions surely lie in this order, without gaps."""
    sizes, strides = tensor.shape, tensor.stride()
    return any(is_surely(size == 0) for size in sizes) or all(
        is_surely(sizes[dim] == 1) or is_surely(strides[dim] == math.prod(sizes[inner] for inner in order[place:]))
        for place, dim in enumerate(order, 1)
    )


def lay_out(tensor: Laid, order: Order | None) -> Laid:
    """Lay a tensor, or a proxy of one, out in an order of dimensions, for a compiler. None leaves it as it comes."""
    if order is None:
        return tensor
    plain = range(len(order))
    if order == tuple(plain):
        return tensor.contiguous()
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in plain])
