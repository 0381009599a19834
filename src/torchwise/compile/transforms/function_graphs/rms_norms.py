"""Find norms by the root of the mean square (https://arxiv.org/abs/1910.07467), called as such or written out.

Written out they are a tensor times `rsqrt` of the mean of its squares plus a number, and perhaps times a gain. So are
those of the Llamas of Transformers, and of Meta's own code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchwise.compile.few_rows.operator import TYPES
from torchwise.compile.transforms.function_graphs.nodes import (
    argument,
    name_of,
    number_of,
    raw_name,
    same_sizes,
    value_of,
    writes,
)
from torchwise.compile.transforms.function_graphs.product_epilogues import CASTS

RAW_CASTS = (*CASTS, "type_as")


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A norm of the last dimension of a tensor.

    Attributes:
        source: the node of the tensor.
        gain: a node (features,), in the tensor's type, or None.
        epsilon: added to the mean square.
        nodes: those that compute it, each behind its inputs.
    """

    source: Node
    gain: Node | None
    epsilon: float
    nodes: tuple[Node, ...]


def find_rms_norm(node: Node) -> RMSNorm | None:
    """Return the norm that a node is the result of, or None. Its result has the type of its tensor."""
    found = _read_call(node) or _read_gain(node)
    value = value_of(node)
    source = None if found is None else value_of(found.source)
    if found is None or value is None or source is None or value.dtype not in TYPES:
        return None
    gain = value if found.gain is None else value_of(found.gain)
    is_alike = source.dtype is value.dtype and gain is not None and gain.dtype is value.dtype
    made = {one.dtype for one in map(value_of, found.nodes) if one is not None}
    rounds_no_more = made <= {source.dtype, torch.float32}  # the kernel has no other rounding that a model may ask for
    fits = is_alike and rounds_no_more and same_sizes(source.shape, value.shape)
    return found if fits and not any(map(writes, found.nodes)) else None


def _read_call(node: Node) -> RMSNorm | None:
    """Return the norm that a call of `rms_norm` computes."""
    if name_of(node) != "rms_norm":
        return None
    names = ("input", "normalized_shape", "weight", "eps")
    source, shape, gain, epsilon = (argument(node, *one) for one in enumerate(names))
    value = value_of(source)
    if value is None or not same_sizes(tuple(shape), value.shape[-1:]):
        return None
    if epsilon is None:
        # Of types of 16 bits, releases of PyTorch have taken their own epsilon, or that of float32.
        number = torch.finfo(value.dtype).eps if value.dtype is torch.float32 else None
    else:
        number = number_of(epsilon)
    return None if number is None else RMSNorm(source, gain, number, (node,))


def _read_gain(node: Node) -> RMSNorm | None:
    """Return a norm that is written out, with a gain or without one, from its last node."""
    passed, inner = _strip(node)
    if name_of(inner) == "mul" and len(inner.args) == 2:
        for one, other in (inner.args, inner.args[::-1]):
            between, product = _strip(other)
            found = _read_quotient(product)
            if found is not None and _is_gain(one, found.source):
                return RMSNorm(found.source, one, found.epsilon, (*found.nodes, *between, inner, *passed))
    found = _read_quotient(inner)
    return None if found is None else RMSNorm(found.source, None, found.epsilon, (*found.nodes, *passed))


def _read_quotient(node: Any) -> RMSNorm | None:
    """Return a norm without a gain: a tensor times the inverse root of its mean square, or divided by the root."""
    if name_of(node) == "mul" and len(node.args) == 2:
        pairs = [(node.args, "rsqrt"), (node.args[::-1], "rsqrt")]
    elif name_of(node) == "div" and len(node.args) == 2 and not node.kwargs:
        pairs = [(node.args, "sqrt")]
    else:
        return None
    for (rows, root), name in pairs:
        passed, source = _strip(rows)
        if name_of(root) != name or len(root.args) != 1 or not isinstance(source, Node):
            continue
        total = root.args[0]
        mean, epsilon = _read_sum(total)
        if mean is None or not _is_mean_of_last(mean):
            continue
        squared, square_root = _read_square(mean.args[0])
        between, squared_source = _strip(square_root)
        if squared_source is source and epsilon is not None:
            nodes = (*between, *passed, *squared, mean, total, root, node)
            return RMSNorm(source, None, epsilon, tuple(dict.fromkeys(nodes)))
    return None


def _read_sum(node: Any) -> tuple[Node | None, float | None]:
    """Return the node to which a number is added, and the number."""
    if name_of(node) == "add" and len(node.args) == 2 and not node.kwargs:
        for one, other in (node.args, node.args[::-1]):
            number = number_of(other)
            if number is not None and isinstance(one, Node):
                return one, number
    return None, None


def _is_mean_of_last(node: Node) -> bool:
    dims, value = argument(node, 1, "dim"), value_of(node.args[0]) if node.args else None
    if name_of(node) != "mean" or value is None or argument(node, 2, "keepdim", False) is not True:
        return False
    dims = tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)
    return dims in ((-1,), (value.dim() - 1,)) and node.kwargs.get("dtype") is None


def _read_square(node: Any) -> tuple[list[Node], Any]:
    """Return the node that squares another one, and this other one."""
    name, args = name_of(node), node.args if isinstance(node, Node) else ()
    if not args:
        return [], None
    if name == "square" or (name == "pow" and len(args) == 2 and args[1] == 2):
        return [node], args[0]
    return ([node], args[0]) if name == "mul" and len(args) == 2 and args[0] is args[1] else ([], None)


def _is_gain(node: Any, source: Node) -> bool:
    gain, value = value_of(node), value_of(source)
    return gain is not None and value is not None and same_sizes(gain.shape, value.shape[-1:])


def _strip(node: Any) -> tuple[list[Node], Any]:
    """Return the casts that a value comes through, the first of them first, and the value before them."""
    passed: list[Node] = []
    while raw_name(node) in RAW_CASTS and node.args and _is_cast(node):
        passed.insert(0, node)
        node = node.args[0]
    return passed, node


def _is_cast(node: Node) -> bool:
    """Whether a node has the numbers of its input, on the same device, in a type that rows may have."""
    made, given = value_of(node), value_of(node.args[0])
    is_known = made is not None and given is not None and {made.dtype, given.dtype} <= {*TYPES}
    return is_known and made is not None and given is not None and made.device == given.device
