"""Attention that is written out as products and a softmax becomes PyTorch's fused attention.

`scaled_dot_product_attention` never writes the scores to memory (https://arxiv.org/abs/2205.14135). Inductor has
patterns for it, too. They miss most spellings of `benchmarks/attention_spellings.py` on a CPU, such as a mask by
`masked_fill`, queries that are scaled, `einsum`, or scores without a scale.

`nn.MultiheadAttention` writes attention out for weights that it returns. If nobody reads them, it has to return none.

Left alone are weights that are returned, too, and those with dropout. Where a mask hides all keys of a row, eager
answers NaN, and the fused attention may answer zero. If an example shows that, the plan fails its verification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    add_call,
    argument,
    erase_dead,
    is_dead,
    list_between,
    name_of,
    replace,
    same_sizes,
    value_of,
    writes,
)
from torchwise.compile.transforms.function_graphs.scores import Mask, Operand, Scores, read_einsum, read_scores

MIN_DIMS, MAX_DIMS = 2, 4
"""Dimensions of scores. Fused kernels take four, so that others are added in front."""
NEED_WEIGHTS = 15
"""Place of an argument of `multi_head_attention_forward`, by which it returns its weights."""


def rewrite(graph: Graph) -> int:
    """Put fused attention in the place of written-out attention, and return how often."""
    rewrites = {"matmul": rewrite_product, "einsum": rewrite_product, "multi_head_attention_forward": _forgo_weights}
    return sum(rewrites[name](graph, node) for node in list(graph.nodes) if (name := name_of(node)) in rewrites)


def _forgo_weights(_: Graph, node: Node) -> bool:
    """Have `nn.MultiheadAttention` compute no weights that nobody reads. It then uses fused attention by itself."""
    has_dropout = argument(node, 10, "dropout_p", 0.0) != 0 and argument(node, 13, "training", True)
    readers = [user for user in node.users if user.args[1:] != (0,)]
    is_read = not all(map(is_dead, readers))
    if len(node.args) > NEED_WEIGHTS or node.kwargs.get("need_weights") is False or has_dropout or is_read:
        return False
    for reader in readers:
        erase_dead(reader)
    # Without weights, a mask that is said to be causal is not read. With them, the mask counts alone.
    node.kwargs = {**node.kwargs, "need_weights": False, "is_causal": False}
    return True


def rewrite_product(graph: Graph, product: Node) -> bool:
    """Put fused attention in the place of the attention that a product ends, and return whether it ends one."""
    found = _read_last(product)
    scores = read_scores(found[0], product) if found is not None else None
    if found is None or scores is None or not _fits(scores, found[1], product):
        return False
    operands, batch = (scores.query, scores.key, found[1]), scores.sizes[:-2]
    answer: Any = value_of(product)
    with graph.inserting_before(product):
        query, key, value = (lay_out(graph, one, batch) for one in operands)
        options: dict[str, Any] = {"attn_mask": make_mask(graph, scores, answer.dtype), "scale": scores.scale}
        made = graph.call_function(functional.scaled_dot_product_attention, (query, key, value), options)
        made.meta[VALUE] = answer.new_empty((*_sizes_of(query)[:-1], _sizes_of(value)[-1]))
        fused = lay_back(graph, made, answer.shape, found[2])
    replace(product, fused)
    return True


def _read_last(product: Node) -> tuple[Any, Operand, tuple[int, ...]] | None:
    """Return the weights and the values of the last product, and the order in which it has the result's dimensions."""
    answer = value_of(product)
    if answer is None or not product.args or writes(product):
        return None
    plain = tuple(range(answer.dim()))
    if name_of(product) == "matmul":
        other = argument(product, 1, "other", product.kwargs.get("mat2"))
        return (product.args[0], Operand(other, plain), plain) if isinstance(other, Node) else None
    if (found := read_einsum(product)) is None:
        return None
    first, second, result, weights, values = found
    if first[-1:] in result:
        first, second, weights, values = second, first, values, weights
    features = [letter for letter in second if letter not in first]
    if len(first) < 2 or len(features) != 1 or not isinstance(values, Node):
        return None
    *batch, row, column = list(first)
    read, made = [*batch, column, *features], [*batch, row, *features]
    if sorted(read) != sorted(second) or sorted(made) != sorted(result):
        return None
    return weights, Operand(values, tuple(map(second.index, read))), tuple(map(made.index, result))


def _fits(scores: Scores, values: Operand, product: Node) -> bool:
    """Whether fused attention takes these tensors: of one dtype, with equal batches, and unchanged until the end."""
    operands, sizes = (scores.query, scores.key, values), scores.sizes
    answer: Any = value_of(product)
    tensors = [value_of(one.node) for one in operands]
    if answer.dim() < MIN_DIMS or not answer.is_floating_point() or not MIN_DIMS <= len(sizes) <= MAX_DIMS:
        return False
    if any(
        t is None or t.dtype != answer.dtype or t.dim() != len(o.order) for t, o in zip(tensors, operands, strict=True)
    ):
        return False
    batches = [[t.shape[dim] for dim in o.order[:-2]] for t, o in zip(tensors, operands, strict=True)]  # type: ignore[union-attr]
    if not same_sizes(batches[0], batches[1]) or not all(can_become(one, sizes[:-2]) for one in batches):
        return False
    if name_of(product) == "matmul" and not can_become(answer.shape[:-2], sizes[:-2]):
        return False
    if any(writes(node) and node not in scores.steps for node in list_between(scores.product, product)):
        return False
    is_sole = len(scores.masks) == 1
    return all(can_mask(mask, answer.dtype, len(sizes), is_sole=is_sole) for mask in scores.masks)


def can_become(batch: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether a view can divide or join these dimensions into others. Sizes that vary stay as they are."""
    if same_sizes(batch, other):
        return True
    are_numbers = all(isinstance(size, int) for size in (*batch, *other))
    return are_numbers and math.prod(batch) == math.prod(other)


def can_mask(mask: Mask, dtype: torch.dtype, dims: int, *, is_sole: bool) -> bool:
    """Return whether a mask of the fused attention can take the place of one."""
    tensor = value_of(mask.tensor)
    if tensor is None or not 1 <= tensor.dim() <= dims:
        return False
    if mask.fill is None:
        return tensor.dtype == dtype  # another one would be rounded, or round the scores
    if math.isinf(mask.fill):
        return True
    # A row that is hidden whole has equal weights only if nothing is left of scores to which the fill is added. The
    # lowest number may take the place of a sole fill. Beside another mask, the fill itself counts.
    return dtype is not torch.float16 and (is_sole or mask.fill <= torch.finfo(dtype).min / 4)


def lay_out(graph: Graph, operand: Operand, batch: Sequence[Any]) -> Node:
    """Add an operand with its length and its features last, in four dimensions."""
    node, order = operand.node, operand.order
    swapped = (*order[:-2], order[-1], order[-2])
    if order != tuple(range(len(order))):
        is_swap = swapped == tuple(range(len(order)))
        if is_swap and (source := _source_of_transposed(node)) is not None:
            node = source
        else:
            node = add_call(graph, "transpose", node, -2, -1) if is_swap else add_call(graph, "permute", node, order)
    sizes = _sizes_of(node)
    if not same_sizes(sizes[:-2], batch):
        node = add_call(graph, "reshape", node, (*batch, *sizes[-2:]))
    for _ in range(MAX_DIMS - len(batch) - 2):
        node = add_call(graph, "unsqueeze", node, 0)
    return node


def _source_of_transposed(node: Node) -> Node | None:
    """Return the node whose last two dimensions another node swaps, or None."""
    source = node.args[0] if node.args else None
    if name_of(node) not in ("transpose", "mT") or not isinstance(source, Node) or (value := value_of(source)) is None:
        return None
    swapped = (-2, -1) if name_of(node) == "mT" else node.args[1:]
    dims = {dim % value.dim() for dim in swapped if isinstance(dim, int)}
    return source if dims == {value.dim() - 1, value.dim() - 2} and not any(map(writes, source.users)) else None


def lay_back(graph: Graph, made: Node, sizes: Sequence[Any], order: tuple[int, ...]) -> Node:
    """Return the answer of fused attention with the sizes and the order of dimensions of the product."""
    before = [sizes[order.index(place)] for place in range(len(sizes))]
    node = made
    for _ in range(MAX_DIMS - len(sizes)):
        if _sizes_of(node)[0] == 1:
            node = add_call(graph, "squeeze", node, 0)
    if not same_sizes(_sizes_of(node), before):
        node = add_call(graph, "reshape", node, tuple(before))
    return node if order == tuple(range(len(order))) else add_call(graph, "permute", node, order)


def make_mask(graph: Graph, scores: Scores, dtype: torch.dtype) -> Node | None:
    """Return one mask for all steps: of booleans for one that hides scores, else a tensor that is added."""
    made: Node | None = None
    masks = scores.masks
    if len(masks) == 1 and masks[0].fill == -math.inf:
        made = masks[0].tensor if masks[0].keeps else add_call(graph, "logical_not", masks[0].tensor)
    else:
        for mask in masks:
            made = _add_mask(graph, made, mask, dtype, is_sole=len(masks) == 1)
    if made is None or len(_sizes_of(made)) in (2, MAX_DIMS):
        return made
    return add_call(graph, "unsqueeze", made, 0)


def _add_mask(graph: Graph, made: Node | None, mask: Mask, dtype: torch.dtype, *, is_sole: bool) -> Node:
    if mask.fill is None:
        added = mask.tensor if mask.sign == 1 else add_call(graph, "neg", mask.tensor)
        return added if made is None else add_call(graph, "add", made, added)
    hidden = add_call(graph, "logical_not", mask.tensor) if mask.keeps else mask.tensor
    if made is None:
        made = add_call(graph, "to", hidden, dtype)
        made = add_call(graph, "mul", made, 0)
    lowest = torch.finfo(dtype).min
    fill = mask.fill if math.isinf(mask.fill) else lowest if is_sole else max(mask.fill, lowest)
    return add_call(graph, "masked_fill", made, hidden, fill)


def _sizes_of(node: Node) -> Sequence[Any]:
    value: Any = value_of(node)
    return tuple(value.shape)
