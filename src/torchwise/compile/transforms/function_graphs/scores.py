"""Read attention that is written out in a graph, backwards from its last product: weights · values.

The weights are a softmax over the last dimension. The scores below it are a product of queries and keys, then scaled,
then masked: by an added tensor, or by a number so low that its weight is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from torchwise.compile.transforms.function_graphs.nodes import (
    argument,
    is_only_for,
    name_of,
    number_of,
    same_sizes,
    value_of,
    writes,
)

LOW = -1e8
"""The highest number in place of scores that counts as a mask: beside any other score, its weight is zero."""
_STEPS = ("mul", "div", "add", "sub", "masked_fill", "where", "float", "to", "view", "reshape")
"""Functions between a product and a sum with a mask."""


@dataclass(frozen=True, slots=True)
class Mask:
    """One step of masking.

    Attributes:
        tensor: is added to the scores, or says where they are filled.
        fill: the number that replaces scores, or None if the tensor is added.
        keeps: whether a tensor for filling says where scores stay.
        sign: 1 or -1, by which an added tensor is multiplied.
    """

    tensor: Node
    fill: float | None = None
    keeps: bool = False
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a product, and the order of dimensions in which its length and its features come last."""

    node: Node
    order: tuple[int, ...]


@dataclass(slots=True)
class Scores:
    """The softmax of scores, taken apart.

    Attributes:
        product: the product of queries and keys.
        query: the queries.
        key: the keys.
        scale: the number by which products are multiplied.
        masks: steps of masking, in the order in which they act.
        sizes: the sizes of the scores where masks act, or of the product without any.
        steps: the nodes from the product to the weights.
    """

    product: Node
    query: Operand
    key: Operand
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)
    sizes: tuple[Any, ...] = ()
    steps: list[Node] = field(default_factory=list)


def read_scores(weights: Any, product: Node) -> Scores | None:
    """Return the scores whose softmax `weights` is, or None. All that lies between is for `product` alone."""
    softmax = _skip_harmless(weights, product)
    if softmax is None or not is_softmax(softmax):
        return None
    return read_below(softmax.args[0] if softmax.args else None, softmax)


def is_softmax(node: Node) -> bool:
    """Whether a node is a softmax over the last dimension."""
    return name_of(node) == "softmax" and not writes(node) and _is_over_last(node)


def read_below(node: Any, user: Node) -> Scores | None:
    """Return the scores that `node` is, or None. All that lies between is for `user` alone."""
    masks: list[Mask] = []
    sizes: tuple[Any, ...] | None = None
    steps: list[Node] = []
    scale = 1.0
    while isinstance(node, Node) and (value := value_of(node)) is not None and is_only_for(node, user):
        if (found := _read_product(node)) is not None:
            query, key, factor, added = found
            masks += [Mask(added)] if added is not None else []
            if added is not None and scale != 1.0:
                return None
            of_masks = tuple(value.shape) if sizes is None else sizes
            return Scores(node, query, key, scale * factor, masks[::-1], of_masks, steps)
        step = _read_step(node)
        if step is None or not _keeps_sizes(node, step[0]) or (isinstance(step[1], Mask) and scale != 1.0):
            return None
        if isinstance(step[1], Mask):
            if sizes is not None and not same_sizes(sizes, value.shape):
                return None
            sizes = tuple(value.shape)
            masks.append(step[1])
        else:
            scale *= step[1]
        steps.append(node)
        user, node = node, step[0]
    return None


def read_einsum(node: Node) -> tuple[str, str, str, Any, Any] | None:
    """Return the letters of an einsum's two operands and its result, and the operands, or None."""
    equation = node.args[0] if node.args else None
    operands: Any = node.args[1:] if len(node.args) > 2 else node.args[1] if len(node.args) == 2 else ()
    if not isinstance(equation, str) or not isinstance(operands, (tuple, list)) or len(operands) != 2:
        return None
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or len(letters) != 2 or any(len(set(one)) != len(one) or "." in one for one in (*letters, result)):
        return None
    return letters[0], letters[1], result, operands[0], operands[1]


def _read_product(node: Node) -> tuple[Operand, Operand, float, Node | None] | None:
    """Return queries, keys, a factor and an added tensor of a product that gives scores."""
    name = name_of(node)
    if name == "einsum":
        return _read_einsum_scores(node)
    if name not in ("matmul", "baddbmm") or writes(node):
        return None
    factor, added, place = 1.0, None, 0
    if name == "baddbmm":
        beta, alpha = argument(node, 3, "beta", 1), argument(node, 4, "alpha", 1)
        if beta not in (0, 1) or number_of(alpha) is None:
            return None
        added, factor, place = next(iter(node.args), None) if beta else None, float(alpha), 1
    query, key = (*node.args[place : place + 2], None, None)[:2]
    if not isinstance(query, Node) or not isinstance(key, Node) or not (added is None or isinstance(added, Node)):
        return None
    rank = value.dim() if (value := value_of(node)) is not None else 0
    batch = tuple(range(rank - 2))
    return Operand(query, (*batch, rank - 2, rank - 1)), Operand(key, (*batch, rank - 1, rank - 2)), factor, added


def _read_einsum_scores(node: Node) -> tuple[Operand, Operand, float, None] | None:
    if (found := read_einsum(node)) is None or len(found[2]) < 2:
        return None
    one, other, result, first, second = found
    *batch, row, column = list(result)
    if row in other:
        one, other, first, second = other, one, second, first
    summed = set(one) - set(result)
    if len(summed) != 1 or not isinstance(first, Node) or not isinstance(second, Node):
        return None
    rows, columns = [*batch, row, *summed], [*batch, column, *summed]
    if sorted(rows) != sorted(one) or sorted(columns) != sorted(other):
        return None
    return Operand(first, tuple(map(one.index, rows))), Operand(second, tuple(map(other.index, columns))), 1.0, None


def _read_step(node: Node) -> tuple[Any, Mask | float] | None:
    """Return the scores below a step, and the mask or the factor that it applies."""
    name = name_of(node) if node.args and "out" not in node.kwargs else ""
    if name in ("mul", "div") and len(node.args) == 2 and not node.kwargs:
        scores, number = node.args if number_of(node.args[0]) is None or name == "div" else node.args[::-1]
        factor = number_of(number)
        if factor is None or not math.isfinite(factor) or factor == 0:
            return None
        return scores, factor if name == "mul" else 1 / factor
    if name in ("add", "sub") and len(node.args) == 2 and not node.kwargs:
        return _read_added(node, -1 if name == "sub" else 1)
    if name == "masked_fill":
        fill = number_of(argument(node, 2, "value"))
        return (node.args[0], mask) if (mask := _mask(argument(node, 1, "mask"), fill, keeps=False)) else None
    if name == "where" and len(node.args) == 3:
        for scores, other, keeps in ((node.args[1], node.args[2], True), (node.args[2], node.args[1], False)):
            if (fill := number_of(other)) is not None:
                return (scores, mask) if (mask := _mask(node.args[0], fill, keeps=keeps)) else None
    if is_view(node) or _is_harmless_cast(node):
        return node.args[0], 1.0
    return None


def _keeps_sizes(node: Node, below: Any) -> bool:
    """Whether a step does not repeat scores for a larger mask."""
    before, after = value_of(below), value_of(node)
    if before is None or after is None:
        return False
    return is_view(node) or same_sizes(before.shape, after.shape)


def _read_added(node: Node, sign: int) -> tuple[Any, Mask] | None:
    """Return the scores and the mask of a sum. The scores lead to a product, and have the size of the sum."""
    value, orders = value_of(node), [(0, 1), (1, 0)] if sign == 1 else [(0, 1)]
    for place, other in orders:
        scores, mask = node.args[place], node.args[other]
        of_scores = value_of(scores)
        if not isinstance(mask, Node) or of_scores is None or value is None or (place == 1 and writes(node)):
            continue  # a mask that is written to is read later
        if same_sizes(of_scores.shape, value.shape) and _leads_to_product(scores):
            return scores, Mask(mask, sign=sign)
    return None


def _leads_to_product(node: Any) -> bool:
    found, seen = [node], set[Any]()
    while found:
        node = found.pop()
        if name_of(node) in ("matmul", "einsum", "baddbmm"):
            return True
        if node not in seen and name_of(node) in _STEPS:
            found += node.all_input_nodes
        seen.add(node)
    return False


def _mask(tensor: Any, fill: float | None, *, keeps: bool) -> Mask | None:
    value = value_of(tensor)
    if value is None or value.dtype is not torch.bool or fill is None or not fill <= LOW:
        return None
    return Mask(tensor, fill, keeps=keeps)


def is_view(node: Node) -> bool:
    """Whether a node only divides or joins dimensions before the last two."""
    before, after = value_of(node.args[0] if node.args else None), value_of(node)
    if name_of(node) not in ("view", "reshape", "unsqueeze", "squeeze") or before is None or after is None:
        return False
    return min(before.dim(), after.dim()) >= 2 and same_sizes(before.shape[-2:], after.shape[-2:])


def _skip_harmless(node: Any, user: Node) -> Node | None:
    """Return the node below casts, views and dropout that is off."""
    while isinstance(node, Node) and value_of(node) is not None and is_only_for(node, user):
        is_dropout = name_of(node) in ("dropout", "feature_dropout") and _is_off(node)
        if not (is_dropout or is_view(node) or _is_cast(node)):
            return node
        user, node = node, node.args[0] if node.args else None
    return None


def _is_off(dropout: Node) -> bool:
    return argument(dropout, 1, "p", 0.5) == 0 or argument(dropout, 2, "training", True) is False


def _is_cast(node: Node) -> bool:
    before, after = value_of(node.args[0] if node.args else None), value_of(node)
    if name_of(node) not in ("float", "half", "bfloat16", "to", "type_as", "type", "contiguous"):
        return False
    is_known = before is not None and after is not None and before.device == after.device
    return is_known and after.is_floating_point() and before.is_floating_point()  # type: ignore[union-attr]


def _is_harmless_cast(node: Node) -> bool:
    """Whether a node casts scores to the same or to a higher precision."""
    if not _is_cast(node):
        return False
    before, after = value_of(node.args[0]), value_of(node)
    return after is not None and before is not None and torch.promote_types(before.dtype, after.dtype) == after.dtype


def _is_over_last(softmax: Node) -> bool:
    value = value_of(softmax)
    if not softmax.kwargs.keys() <= {"input", "dim", "dtype", "_stacklevel"}:
        return False
    dim = argument(softmax, 1, "dim")
    return value is not None and dim in (-1, value.dim() - 1) and value.is_floating_point()
