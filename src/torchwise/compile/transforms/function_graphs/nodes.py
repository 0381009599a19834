"""Read the nodes of a graph of torch's functions, which have several names for one operation."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise._torch.dispatch import FAKE_TENSOR
from torchwise._torch.functions import DEFINING_MODULES, is_operator_that_writes

VALUE = "example_value"
"""The key in a node's meta data of its value: a tensor without data."""
ONCE = "torchwise_once"
"""The key in the meta data of a node that a rewrite added: its value depends on weights alone, and is computed once."""
REPLACED = "torchwise_replaced"
"""The key in the meta data of a parameter in whose place calls may have another one, as nothing checks it."""
_SYNONYMS = {
    "bmm": "matmul",
    "mm": "matmul",
    "multiply": "mul",
    "imul": "mul",
    "rmul": "mul",
    "truediv": "div",
    "itruediv": "div",
    "true_divide": "div",
    "divide": "div",
    "iadd": "add",
    "radd": "add",
    "isub": "sub",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
}
_MODULES = (
    "torch",
    "torch.functional",
    "torch.nn.functional",
    *DEFINING_MODULES,
    "_operator",
    "builtins",
)
"""Modules whose functions have the meaning of their names. `torch.masked.softmax` is another than `torch.softmax`."""
_WRITES = {
    "setitem",
    *(name.strip("_") for name in dir(operator) if name[:3] == "__i" and f"__{name[3:]}" in dir(operator)),
}
"""Functions that write, and have no underscore at their end: `operator.iadd` and all like it."""
_MODES = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode", "_exit_inference_mode"}
"""Functions by which Dynamo writes the contexts of a program down."""
_VIEWS = ("view", "reshape", "transpose", "mean", "sum", "getitem", "unsqueeze", "squeeze", "contiguous")
_ALIASES = {
    *("detach", "t", "T", "mT", "H", "mH", "adjoint", "permute", "movedim", "moveaxis", "select"),
    *("narrow", "expand", "expand_as", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "diagonal", "unbind"),
    *("split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unfold", "as_strided"),
    *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to", "real", "view_as_real", "to", "type", "type_as"),
    *("float", "half", "bfloat16", "double", "cpu", "cuda", "conj", "positive", *_VIEWS),
}
"""Functions whose result may be in the memory of their input."""


def name_of(node: Any) -> str:
    """Return the name of a node's function, the same for all of its spellings, or "" for anything else.

    A function that writes has the name of the one that does not. `is_written` tells of those.
    """
    name = raw_name(node)
    return _SYNONYMS.get(name, name)


def raw_name(node: Any) -> str:
    """Return the name of a node's function as it was called, without underscores, or "" for anything else."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return ""
    if not isinstance(node.target, str) and (getattr(node.target, "__module__", None) or "torch") not in _MODULES:
        return ""
    name = _given_name(node)
    if name == "getattr":  # a property, such as `mT`
        return str(node.args[1])
    return name.strip("_")


def _given_name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """Return an argument of a node, given by its place or by its name."""
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def value_of(node: Any) -> torch.Tensor | None:
    """Return the tensor without data that a node stands for, or None."""
    value = node.meta.get(VALUE) if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_weight(node: Any) -> bool:
    """Whether a node is a plain parameter of the model, which no function of the graph writes to."""
    value = value_of(node)
    if not isinstance(value, torch.nn.Parameter) or node.op != "placeholder" or REPLACED in node.meta:
        return False
    is_plain = type(value) is torch.nn.Parameter or type(value) is FAKE_TENSOR.get()  # and no subclass with other rules
    return is_plain and value.layout is torch.strided and not _is_written(node)


def _is_written(node: Node) -> bool:
    return any(writes(user) or (_may_be_view(user) and _is_written(user)) for user in node.users)


def _may_be_view(node: Node) -> bool:
    return name_of(node) in _ALIASES or not name_of(node)  # a function by another name may be any


def number_of(given: Any) -> float | None:
    """Return a number that a graph holds as such, or in a tensor that it makes of one, or None."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    name = name_of(given)
    if name == "full" and list(argument(given, 0, "size", ())) == []:
        return number_of(argument(given, 1, "fill_value"))
    if name in ("tensor", "scalar_tensor", "to", "sqrt"):
        inner = number_of(given.args[0] if given.args else None)
        return math.sqrt(inner) if inner is not None and name == "sqrt" and inner >= 0 else inner
    return None


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are known to be equal, for all sizes of the inputs. It puts no condition on later calls."""
    return len(one) == len(other) and all(map(_is_same, one, other))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return type(one) is type(other) and one.node.expr == other.node.expr  # numbers of a graph for several sizes


def is_only_for(node: Node, user: Node) -> bool:
    """Whether a node's result is read by one other alone, leaving aside those whose own result nobody reads.

    One that takes on its dtype does not count, as it gets another node with this dtype, or is left out, too.
    """
    return all(other is user or is_dead(other) or _asks_dtype(other, node) for other in node.users)


def _asks_dtype(node: Node, other: Node) -> bool:
    return raw_name(node) == "type_as" and len(node.args) == 2 and node.args[1] is other is not node.args[0]


def is_dead(node: Node) -> bool:
    """Whether nobody reads a node's result, nor anything else that is made of it."""
    return name_of(node) in _VIEWS and not writes(node) and all(map(is_dead, node.users))


def writes(node: Node) -> bool:
    """Whether a function writes to one of its arguments, or sets a mode of PyTorch, which nothing may move across."""
    name, names = _given_name(node), _names_of_arguments(node)
    place = names.index("inplace") if "inplace" in names else len(node.args)
    if node.kwargs.get("out") is not None or argument(node, place, "inplace", False) is not False:
        return True
    if sets_mode(node):
        return True
    is_method = name.endswith("_") and not name.endswith("__")
    return is_method or name.strip("_") in _WRITES or is_operator_that_writes(node.target)


def changes_form(node: Node) -> bool:
    """Whether a function changes the shape, the strides or the gradient of a tensor that others hold, too.

    Parts that were taken before it are others than those that are taken after it.
    """
    return writes(node) and (
        torch.Tag.inplace_view in getattr(node.target, "tags", ()) or _is_inplace_view(raw_name(node))
    )


@functools.cache
def _is_inplace_view(name: str) -> bool:
    packet: Any = getattr(torch.ops.aten, f"{name}_", None) if name else None
    tags = (getattr(packet, one).tags for one in packet.overloads()) if packet is not None else ()
    return name == "requires_grad" or any(torch.Tag.inplace_view in one for one in tags)


def sets_mode(node: Node) -> bool:
    """Whether a function sets a mode of PyTorch, by which the functions after it compute in another way."""
    return _given_name(node) in _MODES


def _names_of_arguments(node: Node) -> tuple[str, ...]:
    code: Any = getattr(node.target, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code is not None else ()


def list_between(first: Node, last: Node) -> Iterator[Node]:
    """Return the nodes that run after one and before another."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


def add_call(graph: Graph, name: str, *args: Any) -> Node:
    """Add a call of a tensor's method, with its value: that of the method on tensors without data."""
    node = graph.call_method(name, args)
    given: Any = torch.fx.map_arg(args, value_of)
    node.meta[VALUE] = getattr(given[0], name)(*given[1:])
    return node


def replace(node: Node, other: Node) -> None:
    """Put another node in a node's place, and remove the old one with all that only it has read."""
    node.replace_all_uses_with(other)
    remove_unread(node)


def remove_unread(node: Node) -> None:
    """Remove a node and all that only it has read, if nobody reads its result, and it may be left out."""
    found, erased = [node], set[Node]()
    while found:
        node = found.pop()
        if node in erased:
            continue
        for user in [user for user in node.users if is_dead(user)]:
            erase_dead(user)
        if not node.users and name_of(node) in _REMOVABLE:
            found += node.all_input_nodes
            node.graph.erase_node(node)
            erased.add(node)


def erase_dead(node: Node) -> None:
    """Remove a node that nobody reads (`is_dead`), with all that is made of it."""
    for user in list(node.users):
        erase_dead(user)
    node.graph.erase_node(node)


_REMOVABLE = {"matmul", "einsum", "baddbmm", "mul", "div", "add", "sub", "masked_fill", "where", "softmax", "dropout"}
_REMOVABLE |= {
    "float",
    "to",
    "type_as",
    "type",
    "permute",
    "cat",
    "movedim",
    "expand",
    "repeat_interleave",
    "log",
    "norm",
    "linalg_norm",
    "linalg_vector_norm",
    "vector_norm",
    "pow",
    "square",
    "mT",
    *_VIEWS,
}
"""Functions that may be left out if nobody reads the result. They draw nothing, and write at most to their input."""
