"""Attention of few rows, as in a step of decoding, becomes a call of an operator of our own (`compile/few_rows`).

It is found as PyTorch's fused attention, with keys that are repeated for the heads of a group or not, and written out.
A step may also attend to two or more blocks of keys, such as those of a cache and its own: the scores of all are
joined, and their weights are taken apart again, each for the values of its block. The operator reads the blocks where
they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from torchwise.compile.few_rows.attention import MAX_FEATURES, MAX_ROWS, TYPES, attention_of_few_rows
from torchwise.compile.transforms.function_graphs import fused_attention, grouped_keys
from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    argument,
    is_only_for,
    list_between,
    name_of,
    number_of,
    replace,
    same_sizes,
    value_of,
    writes,
)
from torchwise.compile.transforms.function_graphs.scores import Mask, Operand, Scores, is_softmax, read_below

MIN_DIMS, MAX_DIMS = 3, 4
MAX_BLOCKS = 4
PLACES = {"dropout_p": 4, "is_causal": 5, "enable_gqa": grouped_keys.ENABLE_GQA}
INPUTS = ((0, "query"), (1, "key"), (2, "value"), (3, "attn_mask"), (6, "scale"))
"""The arguments of fused attention: their places and names."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values, and the weights of the values.

    Attributes:
        weights: a part of those of all blocks.
        values: its values.
        start: the place of the part.
        stop: the place behind it.
    """

    weights: Node
    values: Node
    start: int
    stop: int


def rewrite(graph: Graph) -> int:
    """Replace attention of few rows, and return how often."""
    found = sum(_join_blocks(graph, node) for node in list(graph.nodes) if name_of(node) == "add")
    for node in list(graph.nodes):
        if name_of(node) in ("matmul", "einsum") and _has_few_rows(value_of(node)):
            fused_attention.rewrite_product(graph, node)
    fused = [node for node in graph.nodes if name_of(node) == "scaled_dot_product_attention"]
    return found + sum(_replace_fused(graph, node) for node in fused)


def _has_few_rows(value: Tensor | None) -> bool:
    return (
        value is not None
        and MIN_DIMS <= value.dim() <= MAX_DIMS
        and all(isinstance(size, int) for size in value.shape)
        and 0 < value.shape[-2] <= MAX_ROWS
        and 0 < value.shape[-1] <= MAX_FEATURES
        and value.dtype in TYPES
        and not value.requires_grad
    )


def _replace_fused(graph: Graph, node: Node) -> bool:
    """Replace PyTorch's fused attention, if it is of few rows."""
    if not _has_few_rows(value_of(node)):
        return False
    if grouped_keys.treats_rows_alike(node):
        grouped_keys.share_keys(graph, node)
    if argument(node, grouped_keys.ENABLE_GQA, "enable_gqa", False) is not False:
        grouped_keys.fold_groups(graph, node)
    query, key, value, mask, scale = (argument(node, *one) for one in INPUTS)
    tensors, answer = [value_of(one) for one in (query, key, value)], value_of(node)
    if answer is None or not _has_few_rows(answer) or not all(map(_has_numbers, tensors)):
        return False
    options = (("dropout_p", 0.0), ("is_causal", False), ("enable_gqa", False))
    is_plain = all(argument(node, PLACES[name], name, usual) in (usual, None) for name, usual in options)
    features = tensors[0].shape[-1]  # type: ignore[union-attr]
    factor = features**-0.5 if scale is None else number_of(scale)
    fits = (
        is_plain
        and factor is not None
        # Fused attention answers in the layout of its queries, of which a view may be taken.
        and answer.is_contiguous()
        and all(_lies_in_rows(one, -1) for one in tensors if one is not None)
        and all(same_sizes(answer.shape[:-2], one.shape[:-2]) for one in tensors if one is not None)
        and all(one.dtype is answer.dtype for one in tensors if one is not None)
        and features <= MAX_FEATURES
        and (mask is None or _is_mask(value_of(mask), answer))
    )
    if not fits or factor is None:
        return False
    with graph.inserting_before(node):
        made = _call(graph, query, [key], [value], [mask], factor, answer)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


def _has_numbers(value: Tensor | None) -> bool:
    return value is not None and all(isinstance(size, int) and size > 0 for size in value.shape)


def _lies_in_rows(value: Tensor, features: int) -> bool:
    """Whether the features of a tensor lie side by side in memory."""
    return value.shape[features] == 1 or value.stride(features) == 1


def _is_mask(mask: Tensor | None, answer: Tensor) -> bool:
    """Whether the operator takes a mask. One that is added may be of another type, and would round the scores."""
    return _has_numbers(mask) and mask is not None and (not mask.is_floating_point() or mask.dtype is answer.dtype)


def _call(
    graph: Graph,
    query: Node,
    keys: Sequence[Node],
    values: Sequence[Node],
    masks: Sequence[Node | None],
    scale: float,
    like: Tensor,
) -> Node:
    made = graph.call_function(attention_of_few_rows, (query, [*keys], [*values], [*masks], scale))
    made.meta[VALUE] = like.new_empty(tuple(like.shape))
    return made


def _join_blocks(graph: Graph, last: Node) -> bool:
    """Replace attention to several blocks, of which a sum is the end."""
    blocks = _read_blocks(last)
    scores = [] if blocks is None else _read_scores(blocks)
    answer = value_of(last)
    if not blocks or not scores or answer is None or not _fits(blocks, scores, last, answer):
        return False
    first, batch = scores[0], _find_batch(blocks)
    with graph.inserting_before(last):
        query = fused_attention.lay_out(graph, first.query, batch)
        keys = [fused_attention.lay_out(graph, one.key, batch) for one in scores]
        plain = tuple(range(answer.dim()))
        values = [fused_attention.lay_out(graph, Operand(one.values, plain), batch) for one in blocks]
        masks = [fused_attention.make_mask(graph, one, answer.dtype) for one in scores]
        like: Any = value_of(query)
        like = like.new_empty((*like.shape[:-1], answer.shape[-1]))
        made = _call(graph, query, keys, values, masks, first.scale, like)
        found = fused_attention.lay_back(graph, made, answer.shape, plain)
    replace(last, found)
    return True


def _read_blocks(last: Node) -> list[Block] | None:
    """Return the blocks of values of a sum, in the order of their weights, if these are parts of one softmax."""
    terms, found = [last], list[Block]()
    while terms:
        term = terms.pop()
        if name_of(term) == "add" and len(term.args) == 2 and not term.kwargs and not writes(term):
            if not all(isinstance(one, Node) and is_only_for(one, term) for one in term.args):
                return None
            terms += term.args  # type: ignore[arg-type]
        elif (block := _read_block(term)) is not None and len(found) < MAX_BLOCKS:
            found.append(block)
        else:
            return None
    return sorted(found, key=lambda block: block.start) if len(found) > 1 else None


def _read_block(term: Node) -> Block | None:
    """Return the block that a product of weights and values is. A single value is multiplied as such."""
    if name_of(term) not in ("matmul", "mul") or len(term.args) != 2 or term.kwargs or writes(term):
        return None
    for weights, values in (term.args, term.args[::-1])[: 1 if name_of(term) == "matmul" else 2]:
        part, value = value_of(weights), value_of(values)
        if part is None or value is None or not isinstance(values, Node) or not isinstance(weights, Node):
            continue
        span = _read_span(weights)
        is_single = part.shape[-1] == 1 and value.dim() >= MIN_DIMS and value.shape[-2] == 1
        if span is not None and is_only_for(weights, term) and (name_of(term) == "matmul" or is_single):
            return Block(weights, values, *span)
    return None


def _read_span(weights: Node) -> tuple[int, int] | None:
    """Return from where to where weights are a part of the last dimension of a softmax."""
    source = value_of(weights.args[0]) if weights.args else None
    if name_of(weights) != "getitem" or source is None or len(weights.args) != 2:
        return None
    index = weights.args[1] if isinstance(weights.args[1], tuple) else (weights.args[1],)
    *others, last = index
    is_whole = all(one is ... or (isinstance(one, slice) and one == slice(None)) for one in others)
    reaches_last = ... in others or len(index) == source.dim()
    is_softmaxed = isinstance(weights.args[0], Node) and is_softmax(weights.args[0])
    if not isinstance(last, slice) or not is_whole or not reaches_last or not is_softmaxed:
        return None
    numbers = (last.start, last.stop, last.step, source.shape[-1])
    if not all(one is None or isinstance(one, int) for one in numbers):
        return None
    start, stop, step = last.indices(source.shape[-1])
    return (start, stop) if step == 1 and start < stop else None


def _read_scores(blocks: Sequence[Block]) -> list[Scores]:
    """Return the scores of each block, or none. Nothing else reads their weights."""
    softmax: Any = blocks[0].weights.args[0]
    joined: Any = softmax.args[0] if softmax.args else None
    parts = joined.args[0] if name_of(joined) == "cat" and joined.args else ()
    value = value_of(joined)
    is_ours = (
        all(block.weights.args[0] is softmax for block in blocks)
        and len(softmax.users) == len(blocks)
        and isinstance(parts, (list, tuple))
        and len(parts) == len(blocks)
        and value is not None
        and argument(joined, 1, "dim", 0) in (-1, value.dim() - 1)
        and is_only_for(joined, softmax)
        and not writes(joined)
    )
    if not is_ours:
        return []
    place = 0
    for block, part in zip(blocks, parts, strict=True):
        length: Any = value_of(part)
        if length is None or (block.start, block.stop) != (place, place + length.shape[-1]):
            return []
        place = block.stop
    found = [one for part in parts if (one := read_below(part, joined)) is not None]
    return found if len(found) == len(parts) else []


def _fits(blocks: Sequence[Block], scores: Sequence[Scores], last: Node, answer: Tensor) -> bool:
    """Whether the operator takes them: one query, of one dtype, with equal batches, unchanged until the end."""
    first, batch, rank = scores[0], _find_batch(blocks), answer.dim()
    operands = [first.query, *(one.key for one in scores), *(Operand(one.values, (*range(rank),)) for one in blocks)]
    found = [(value_of(operand.node), operand.order) for operand in operands]
    tensors = [(value, order) for value, order in found if value is not None and _has_numbers(value)]
    if not _has_few_rows(answer) or not MIN_DIMS <= len(batch) + 2 <= MAX_DIMS or len(tensors) < len(found):
        return False
    if any(one.dim() != len(order) or one.dtype is not answer.dtype for one, order in tensors):
        return False
    masks = [(mask, one) for one in scores for mask in one.masks]
    steps = {step for one in scores for step in one.steps}
    shapes = [*([one.shape[dim] for dim in order[:-2]] for one, order in tensors), answer.shape[:-2]]
    query, order = tensors[0]
    return (
        all(one.query == first.query and one.scale == first.scale for one in scores)
        and all(fused_attention.can_become(shape, batch) for shape in shapes)
        and query.shape[order[-1]] <= MAX_FEATURES
        and all(_lies_in_rows(one, order[-1]) for one, order in tensors)
        and not any(writes(node) and node not in steps for node in list_between(_find_first(scores), last))
        and all(same_sizes(one.sizes[:-2], batch) for _, one in masks)
        and all(fused_attention.can_mask(mask, answer.dtype, len(batch) + 2, is_sole=True) for mask, _ in masks)
        and _hide_alike(masks)
    )


def _hide_alike(masks: Sequence[tuple[Mask, Scores]]) -> bool:
    """Whether all masks mean the same within one softmax: they hide without a rest, or they all fill with one number.

    In place of that number there will be the lowest of the type.
    """
    fills = {mask.fill for mask, _ in masks}
    return fills <= {None, -math.inf} or (len(fills) == 1 and all(len(one.masks) == 1 for _, one in masks))


def _find_batch(blocks: Sequence[Block]) -> Sequence[Any]:
    """Return the sizes of the batch of the weights of all blocks."""
    value: Any = value_of(blocks[0].weights)
    return tuple(value.shape[:-2])


def _find_first(scores: Sequence[Scores]) -> Node:
    """Return the first of the products, in the order of the graph."""
    products = {one.product for one in scores}
    nodes: Sequence[Node] = scores[0].product.graph.nodes  # type: ignore[assignment]
    return next(node for node in nodes if node in products)
