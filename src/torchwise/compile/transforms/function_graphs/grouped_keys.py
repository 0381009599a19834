"""Keys and values that several queries share are no longer repeated for fused attention.

With grouped queries (https://arxiv.org/abs/2305.13245), models repeat each key and value for the heads of its group,
and write the copies to memory. Fused attention reads the shared ones. If no mask tells the rows of a group apart, as in
a step of decoding, the queries of a group become more rows of one head, which each backend knows. Otherwise it is told
of groups. On one core of a CPU, a step over 1024 keys took 0.39 of its time, and 0.94 with as many queries as
keys (`benchmarks/results/2026-11-27-epyc-2cpu-busy-attention-spellings.txt`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise.compile.transforms.function_graphs import fused_attention
from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    add_call,
    argument,
    list_between,
    name_of,
    remove_unread,
    same_sizes,
    value_of,
    writes,
)

HEADS, DIMS = 1, 4
"""The dimension of heads, of four."""
ENABLE_GQA = 7
"""The place of the argument that tells fused attention of groups."""


def has_repeated_keys(graph: Graph) -> bool:
    """Whether a recorded call repeats keys and values for attention, fused or written out."""
    fused_attention.rewrite(graph)
    return rewrite(graph) > 0


def rewrite(graph: Graph) -> int:
    """Have fused attention read keys and values that were not repeated, and return how often."""
    fused = [node for node in graph.nodes if name_of(node) == "scaled_dot_product_attention"]
    return sum(share_keys(graph, node) for node in fused)


def share_keys(graph: Graph, node: Node) -> bool:
    """Have one fused attention read keys and values that were not repeated, and return whether they were."""
    given = [argument(node, place, name) for place, name in enumerate(("query", "key", "value"))]
    key, value = map(_source_of_repeated, given[1:])
    query = value_of(given[0])
    if key is None or value is None or key[1] != value[1] or query is None or query.dim() != DIMS:
        return False
    if any(writes(between) for repeated in given[1:] for between in list_between(repeated, node)):
        return False
    groups: Any = _sizes_of(key[0])[HEADS]
    if not isinstance(groups, int) or argument(node, ENABLE_GQA, "enable_gqa", False):
        return False
    if treats_rows_alike(node):
        _fold(graph, node, (given[0], key[0], value[0]), groups, key[1])
    else:
        rest = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False))
        node.args = (given[0], key[0], value[0])
        node.kwargs = {**rest, **_without_inputs(node), "enable_gqa": True}
    for repeated in given[1:]:
        remove_unread(repeated)
    return True


def fold_groups(graph: Graph, node: Node) -> bool:
    """Make the queries of a group rows of one head where fused attention is told of groups, if that is the same."""
    given = [argument(node, place, name) for place, name in enumerate(("query", "key", "value"))]
    heads, *shared = [sizes[HEADS] if len(sizes) == DIMS else None for sizes in map(_sizes_of, given)]
    if not treats_rows_alike(node) or not isinstance(heads, int) or shared[0] is None or shared[0] != shared[1]:
        return False
    if not isinstance(shared[0], int) or heads % shared[0] or len(node.args) > ENABLE_GQA:
        return False
    node.kwargs = {name: option for name, option in node.kwargs.items() if name != "enable_gqa"}
    _fold(graph, node, (given[0], given[1], given[2]), shared[0], heads // shared[0])
    return True


def _fold(graph: Graph, node: Node, inputs: tuple[Any, Any, Any], groups: int, times: int) -> None:
    """Make the queries of a group rows of one head, and heads of the rows of the answer."""
    query, key, value = inputs
    with graph.inserting_before(node):
        rows = add_call(graph, "flatten", add_call(graph, "unflatten", query, HEADS, (groups, times)), 2, 3)
    answer: Any = value_of(node)
    mask, options = argument(node, 3, "attn_mask"), _without_inputs(node)
    with graph.inserting_after(node):
        heads = graph.call_method("unflatten", (node, 2, (times, -1)))
    with graph.inserting_after(heads):
        result = graph.call_method("flatten", (heads, 1, 2))
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not heads)
    node.args, node.kwargs = (rows, key, value), {**options, "attn_mask": mask}
    node.meta[VALUE] = answer.unflatten(HEADS, (groups, times)).flatten(2, 3)
    heads.meta[VALUE], result.meta[VALUE] = answer.unflatten(HEADS, (groups, times)), answer


def treats_rows_alike(node: Node) -> bool:
    """Whether attention has no dropout and no mask that differs from head to head, or from row to row."""
    if argument(node, 4, "dropout_p", 0.0) != 0 or argument(node, 5, "is_causal", False) is not False:
        return False
    mask = argument(node, 3, "attn_mask")
    if mask is None:
        return True
    sizes = _sizes_of(mask)
    return 0 < len(sizes) <= DIMS and all(isinstance(size, int) and size == 1 for size in sizes[-3:-1])


def _without_inputs(node: Node) -> dict[str, Any]:
    return {name: given for name, given in node.kwargs.items() if name not in ("query", "key", "value")}


def _source_of_repeated(node: Any) -> tuple[Node, int] | None:
    """Return the heads that a node repeats, each several times in a row, and how often, or None."""
    if name_of(node) == "repeat_interleave":
        source, times = argument(node, 0, "input"), argument(node, 1, "repeats")
        is_ours = len(_sizes_of(source)) == DIMS and argument(node, 2, "dim") in (HEADS, HEADS - DIMS)
        return (source, times) if is_ours and type(times) is int else None
    if name_of(node) not in ("reshape", "view", "flatten"):
        return None
    expanded = argument(node, 0, "input")
    inserted = expanded.args[0] if name_of(expanded) == "expand" else None
    source = _source_of_inserted(inserted)
    if source is None:
        return None
    batch, heads, *rest = _sizes_of(source)
    times = _sizes_of(expanded)[2]
    if type(times) is not int or not isinstance(heads, int):
        return None
    is_repeated = same_sizes(_sizes_of(expanded), (batch, heads, times, *rest))
    return (source, times) if is_repeated and same_sizes(_sizes_of(node), (batch, heads * times, *rest)) else None


def _source_of_inserted(node: Any) -> Node | None:
    """Return the node into which another one inserts a dimension behind its heads, or None."""
    source = argument(node, 0, "input") if name_of(node) in ("getitem", "unsqueeze") else None
    if len(_sizes_of(source)) != DIMS or len(_sizes_of(node)) != DIMS + 1:
        return None
    if name_of(node) == "unsqueeze":
        return source if argument(node, 1, "dim") in (2, -3) else None
    index = node.args[1]
    whole = [one for one in index if one is not None] if isinstance(index, tuple) else [0]
    is_inserted = isinstance(index, tuple) and [place for place, one in enumerate(index) if one is None] == [2]
    return source if is_inserted and all(one == slice(None) for one in whole) else None


def _sizes_of(node: Any) -> tuple[Any, ...]:
    value = value_of(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
