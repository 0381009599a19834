"""Give all repetitions of a loop their inputs at once: as one tensor with a dimension for the repetitions.

Rows of one tensor, one after the other (`x[0]`, `x[1]`, …), are that tensor, and so are slices of equal length. Other
values are stacked, which copies them on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise._torch.dispatch import sets_grad_mode
from torchwise.compile.transforms.function_graphs.independent_loops import count_bytes
from torchwise.compile.transforms.function_graphs.nodes import VALUE, add_call, argument, name_of, value_of
from torchwise.errors import UnsupportedError

MAX_COPIED = 64 << 20
"""Bytes of stacked inputs up to which a loop runs at once: they are copied on each call, and held beside the others."""
Part = tuple[Node, int, int, int | None]
"""A part of a whole: the whole, the dimension, the place where it begins, and its length, or None for one row."""


def join_inputs(graph: Graph, given: Sequence[tuple[Node, ...]], first: Node) -> list[tuple[Node, int | None]]:
    """Return each input of a loop for all repetitions, with its dimension of these, or None if they share the input.

    Nodes are added where the graph inserts. Parts that were taken without gradients lead to none of the whole, so they
    are stacked where the loop has gradients.

    Args:
        graph: the graph.
        given: for each input the values of all repetitions, of equal shape and dtype.
        first: the first function of the loop.

    Raises:
        UnsupportedError: too much would be copied.
    """
    modes = _find_modes(graph)
    parts = [[_read_part(n) if modes[_find_taking(n)] == modes[first] else None for n in nodes] for nodes in given]
    copied = [nodes for nodes, found in zip(given, parts, strict=True) if len(set(nodes)) > 1 and not _is_row(found)]
    size = sum(len(nodes) * count_bytes(nodes[0].meta[VALUE]) for nodes in copied)
    if size > MAX_COPIED:
        much = f"{-(-size >> 20)} MiB of inputs would be copied on every call, and at most {MAX_COPIED >> 20} may"
        raise UnsupportedError(f"{much}: rows of one tensor in their order are not copied")
    return [_join(graph, nodes, found) for nodes, found in zip(given, parts, strict=True)]


def _find_modes(graph: Graph) -> dict[Node, bool]:
    """Return for each node whether gradients are on."""
    is_on, found = torch.is_grad_enabled(), dict[Node, bool]()
    for node in graph.nodes:
        is_on = bool(node.args[0]) if sets_grad_mode(node.target) else is_on
        found[node] = is_on
    return found


def _find_taking(node: Node) -> Node:
    """Return the node that takes a part: the one that takes several, or the part itself."""
    whole = node.args[0] if node.args else None
    return whole if isinstance(whole, Node) and name_of(whole) in _SEVERAL else node


def _join(graph: Graph, nodes: tuple[Node, ...], parts: Sequence[Part | None]) -> tuple[Node, int | None]:
    if len(set(nodes)) == 1:
        return nodes[0], None
    if not _is_row(parts):
        return add_function(graph, torch.stack, list(nodes)), 0
    whole, dim, first, length = parts[0]  # type: ignore[misc]
    count, size = len(nodes), length or 1
    if name_of(whole) in _SEVERAL and value_of(whole) is None:
        whole = whole.args[0]
    value: Any = value_of(whole)
    if (first, count * size) != (0, value.shape[dim]):
        whole = add_call(graph, "narrow", whole, dim, first, count * size)
    return whole if length is None else add_call(graph, "unflatten", whole, dim, (count, size)), dim


_SEVERAL = ("unbind", "chunk", "split")
"""Functions that return all parts of a tensor, one after the other."""


def _is_row(parts: Sequence[Part | None]) -> bool:
    """Whether parts are all of one whole, each where the one before it ends."""
    first = parts[0]
    if first is None:
        return False
    whole, dim, start, length = first
    return all(part == (whole, dim, start + number * (length or 1), length) for number, part in enumerate(parts))


def _read_part(node: Node) -> Part | None:
    """Return the part of a whole that a node takes along one dimension, or None."""
    whole, value = node.args[0] if node.args else None, value_of(node)
    if not isinstance(whole, Node) or value is None:
        return None
    name = name_of(node)
    if name == "getitem" and len(node.args) == 2 and name_of(whole) in _SEVERAL and value_of(whole) is None:
        return _read_one_of_several(whole, node.args[1], value)
    source = value_of(whole)
    if source is None or not _is_known(source):
        return None
    if name == "select":
        return _make_part(source, whole, dim_of(node, 1), argument(node, 2, "index"), None)
    if name == "narrow":
        return _make_part(source, whole, dim_of(node, 1), argument(node, 2, "start"), argument(node, 3, "length"))
    if name == "getitem" and len(node.args) == 2:
        return _read_index(source, whole, node.args[1])
    return None


def _read_index(source: torch.Tensor, whole: Node, index: Any) -> Part | None:
    indices = index if isinstance(index, tuple) else (index,)
    taken = [(dim, one) for dim, one in enumerate(indices) if one != slice(None)]
    if len(taken) != 1 or len(indices) > source.dim():
        return None
    [(dim, one)] = taken
    if type(one) is int:
        return _make_part(source, whole, dim, one, None)
    if not isinstance(one, slice) or one.step not in (None, 1) or type(one.stop) is not int:
        return None
    first = one.start or 0
    if type(first) is not int or not 0 <= first < one.stop <= source.shape[dim]:
        return None
    return _make_part(source, whole, dim, first, one.stop - first)


def _read_one_of_several(several: Node, place: Any, value: torch.Tensor) -> Part | None:
    """Return a part that one of several tensors is, as `unbind`, `chunk` and `split` take them."""
    whole = several.args[0] if several.args else None
    source = value_of(whole)
    if source is None or not isinstance(whole, Node) or type(place) is not int:
        return None
    is_row = name_of(several) == "unbind"
    dim = dim_of(several, 1 if is_row else 2)
    if type(dim) is not int or not _is_known(source):
        return None
    if is_row:
        return _make_part(source, several, dim, place, None)
    length, given = value.shape[dim], argument(several, 1, "split_size", several.kwargs.get("split_size_or_sections"))
    sections = given if isinstance(given, (tuple, list)) else ()
    if name_of(several) == "split" and type(given) is not int and len(set(sections)) != 1:
        return None
    return _make_part(source, several, dim, place * length, length)


def dim_of(node: Node, place: int) -> Any:
    """Return the dimension that a function is given as its argument at a place, as `dim` or as `axis`, or else 0."""
    return argument(node, place, "dim", node.kwargs.get("axis", 0))


def _is_known(source: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in source.shape)


def _make_part(source: torch.Tensor, whole: Node, dim: Any, first: Any, length: Any) -> Part | None:
    if type(dim) is not int or type(first) is not int or first < 0:
        return None
    return whole, dim % source.dim(), first, length


def add_function(graph: Graph, function: Callable[..., Any], *args: Any) -> Node:
    """Add a call of a function, with its value: that of the function on tensors without data."""
    node = graph.call_function(function, args)
    given: Any = torch.fx.map_arg(args, lambda one: one.meta.get(VALUE))
    node.meta[VALUE] = function(*given)
    return node
