"""Which axes the tensors of a region have: a rule for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.backends.operator_problems import list_arguments
from torchwise.compile.programs import pointwise
from torchwise.compile.programs.gpu.axes import Axes, Dims
from torchwise.compile.programs.lowering import name_of, shape_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node

POINTWISE = {
    *pointwise.FLOATS,
    *pointwise.NUMBERS,
    *pointwise.BITS,
    *pointwise.COMPARISONS,
    *pointwise.LOGIC,
    *pointwise.TESTS,
    *("where", "clamp", "hardtanh", "gelu", "leaky_relu", "_to_copy", "copy", "clone", "contiguous", "lift_fresh_copy"),
    *("alias", "detach", "copy_to_strides"),
}
"""Operators that compute each number from one number of each input."""
CONSTANTS = {
    "zeros": 0,
    "zeros_like": 0,
    "ones": 1,
    "ones_like": 1,
    "full": None,
    "full_like": None,
    "scalar_tensor": None,
}
"""Operators that make a tensor of one number."""
DRAWS = {"rand": "rand", "rand_like": "rand", "randn": "randn", "randn_like": "randn"}
"""Operators that draw random numbers, by Triton's name for their distribution."""
FEW = 4
"""Most points of an axis that is cut between all of them."""
MAX_MATRIX = 1 << 18
"""Most numbers of a matrix that each block of rows reads. With larger ones a library is as fast."""
MOVED = ("permute", "transpose", "t", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand")
"""Operators whose output has the same numbers at other places."""
REDUCTIONS = ("sum", "mean", "amax", "amin", "var")
PARTS = ("split", "split_with_sizes", "unbind")
"""Operators with several outputs, which are parts of the input."""


class Labels:
    """The dimensions of each tensor of a region, in axes.

    Args:
        inputs: tensors in memory, which any operator may read anywhere.
    """

    def __init__(self, inputs: Sequence[Node]) -> None:
        self.axes = Axes()
        self._memory = set(inputs)
        self._dims: dict[Node, Dims] = {}
        self._indices: list[Dims] = []
        self._parts: dict[Node, list[Dims]] = {}

    def settle(self) -> None:
        """Cut axes everywhere where one of them is cut, once all nodes are added."""
        for dims in self._indices:
            for axis in self.axes.list_features(dims):
                self.axes.cut_all(axis)
        for dims in self._dims.values():
            for axis in self.axes.list_features(dims):
                if self.axes.size(axis) <= FEW:  # such as places in space, beside which another axis is wide
                    self.axes.cut_all(axis)
        self.axes.settle()

    def add_indices(self, dims: Dims) -> None:
        """Note that rows of a table are read by these numbers, one by one along features."""
        self._indices.append(dims)

    def is_memory(self, node: Node) -> bool:
        """Whether a node is an input, or was told to be a part of one."""
        return node in self._memory

    def add(self, node: Node) -> None:
        """Find the dimensions of a node's output.

        Raises:
            UnsupportedError: there is no rule for it, or it needs an order of numbers that no tile has.
        """
        name = name_of(node)
        if name == "getitem":
            self._dims[node] = self._parts[node.args[0]][node.args[1]]  # type: ignore[index]
        elif name in PARTS:
            self._parts[node] = self._label_parts(node, name)
        elif name == "native_layer_norm":
            self._parts[node] = [self._label_norm(node)]
        else:
            rule = RULES.get(name)
            if rule is None:
                raise UnsupportedError(f"{node.target} is not known")
            self._dims[node] = rule(self, node)

    def dims(self, node: Node) -> Dims:
        """Return the dimensions of a node. Those of memory are its own, whatever other parts of it are read."""
        if node not in self._dims:
            if node not in self._memory:
                raise UnsupportedError(f"{node} is computed outside")
            self._dims[node] = self.make(node)
        return self._dims[node]

    def parts(self, node: Node) -> list[Dims]:
        """Return the dimensions of each output of a node that has several."""
        return self._parts[node]

    def make(self, node: Node) -> Dims:
        """Return dimensions of axes of their own."""
        return tuple(self.axes.add(size) for size in shape_of(node))

    def broadcast(self, node: Node, dims: Dims) -> None:
        """Note that the inputs of a node are aligned with its output from the last dimension on."""
        shape = shape_of(node)
        for one in node.all_input_nodes:
            own = self.dims(one)
            for size, dim, wanted, full in zip(shape_of(one)[::-1], own[::-1], dims[::-1], shape[::-1], strict=False):
                if size == full != 1:
                    self.axes.unify(dim, wanted)

    def _label_parts(self, node: Node, name: str) -> list[Dims]:
        given = list_arguments(node)
        source = self.dims(given["self"])
        dim, start, found = int(given["dim"]) % len(source), 0, []
        for value in node.meta["val"]:
            if name == "unbind":
                self.axes.take(source[dim], start, 1)
                found.append(source[:dim] + source[dim + 1 :])
                start += 1
            else:
                length = int(value.shape[dim])
                found.append((*source[:dim], self.axes.take(source[dim], start, length), *source[dim + 1 :]))
                start += length
        return found

    def _label_norm(self, node: Node) -> Dims:
        given = list_arguments(node)
        dims, rank = self.dims(given["input"]), len(given["normalized_shape"])
        for dim in dims[-rank:]:
            self.axes.mark_features(dim)
        for name in ("weight", "bias"):
            if given[name] is not None:
                for own, dim in zip(self.dims(given[name]), dims[-rank:], strict=True):
                    self.axes.unify(own, dim)
        return dims


def _label_pointwise(labels: Labels, node: Node) -> Dims:
    dims = labels.make(node)
    labels.broadcast(node, dims)
    return dims


def _label_order(labels: Labels, node: Node) -> Dims:
    dims, name, given = labels.dims(node.all_input_nodes[0]), name_of(node), list_arguments(node)
    if name == "permute":
        return tuple(dims[int(one)] for one in given["dims"])
    order = list(range(len(dims)))
    first, second = (0, 1) if name == "t" else (int(given["dim0"]), int(given["dim1"]))
    if len(dims) > 1:
        order[first], order[second] = order[second], order[first]
    return tuple(dims[one] for one in order)


def _label_unsqueeze(labels: Labels, node: Node) -> Dims:
    dims, dim = list(labels.dims(node.all_input_nodes[0])), int(list_arguments(node)["dim"])
    dims.insert(dim % (len(dims) + 1), ())
    return tuple(dims)


def _label_squeeze(labels: Labels, node: Node) -> Dims:
    source, dims = node.all_input_nodes[0], labels.dims(node.all_input_nodes[0])
    given = list_arguments(node).get("dim", list(range(len(dims))))
    gone = {int(one) % max(len(dims), 1) for one in (given if isinstance(given, (list, tuple)) else [given])}
    shape = shape_of(source)
    return tuple(dim for place, dim in enumerate(dims) if place not in gone or shape[place] != 1)


def _label_expand(labels: Labels, node: Node) -> Dims:
    source, shape = node.all_input_nodes[0], shape_of(node)
    dims, sizes = labels.dims(source), shape_of(source)
    missing = len(shape) - len(sizes)
    return tuple(
        labels.axes.add(size) if place < missing or sizes[place - missing] != size else dims[place - missing]
        for place, size in enumerate(shape)
    )


def _label_view(labels: Labels, node: Node) -> Dims:
    return labels.axes.regroup(labels.dims(node.all_input_nodes[0]), shape_of(node))


def _label_slice(labels: Labels, node: Node) -> Dims:
    source, given = node.all_input_nodes[0], list_arguments(node)
    dims = labels.dims(source)
    dim = int(given["dim"]) % len(dims)
    start, length = slice_bounds(given, shape_of(source)[dim])
    return (*dims[:dim], labels.axes.take(dims[dim], start, length), *dims[dim + 1 :])


def slice_bounds(given: dict[str, Any], size: int) -> tuple[int, int]:
    """Return the start and the length of a slice.

    Raises:
        UnsupportedError: it leaves numbers out.
    """
    if int(given["step"]) != 1:
        raise UnsupportedError("a slice leaves numbers out")
    start, stop, _ = slice(given["start"], given["end"]).indices(size)
    return start, max(stop - start, 0)


def _label_select(labels: Labels, node: Node) -> Dims:
    source, given = node.all_input_nodes[0], list_arguments(node)
    dims = labels.dims(source)
    dim = int(given["dim"]) % len(dims)
    labels.axes.take(dims[dim], int(given["index"]) % shape_of(source)[dim], 1)
    return dims[:dim] + dims[dim + 1 :]


def _label_cat(labels: Labels, node: Node) -> Dims:
    given, dims = list_arguments(node), list(labels.make(node))
    dim, start = int(given["dim"]) % len(dims), 0
    for source in given["tensors"]:
        own = labels.dims(source)
        for place, (one, other) in enumerate(zip(own, dims, strict=True)):
            if place != dim:
                labels.axes.unify(one, other)
        length = shape_of(source)[dim]
        labels.axes.mark_features(own[dim])
        part = labels.axes.take(dims[dim], start, length)
        labels.axes.unify(own[dim], part)
        start += length
    return tuple(dims)


def _label_reduction(labels: Labels, node: Node) -> Dims:
    given, source = list_arguments(node), node.all_input_nodes[0]
    dims = labels.dims(source)
    reduced = reduced_dims(given, len(dims))
    for dim in reduced:
        labels.axes.mark_features(dims[dim])
    if given.get("keepdim"):
        return tuple(() if place in reduced else dim for place, dim in enumerate(dims))
    return tuple(dim for place, dim in enumerate(dims) if place not in reduced)


def reduced_dims(given: dict[str, Any], rank: int) -> set[int]:
    """Return the dimensions that a reduction mixes."""
    dims = given.get("dim")
    listed = [dims] if isinstance(dims, int) else dims
    return {int(dim) % max(rank, 1) for dim in listed} if listed else set(range(rank))


def _label_softmax(labels: Labels, node: Node) -> Dims:
    dims = labels.dims(node.all_input_nodes[0])
    if dims:
        labels.axes.mark_features(dims[int(list_arguments(node)["dim"]) % len(dims)])
    return dims


def _label_product(labels: Labels, node: Node) -> Dims:
    given, axes = list_arguments(node), labels.axes
    first, second = (given["mat1"], given["mat2"]) if "mat1" in given else (given["self"], given["mat2"])
    if not labels.is_memory(second):
        raise UnsupportedError("a product with a matrix that is computed")
    (rows, depth), (own_depth, columns) = labels.dims(first), labels.dims(second)
    axes.unify(depth, own_depth)
    dims = (rows, columns)
    for dim in (depth, columns):
        axes.mark_features(dim)
    if "mat1" in given:
        shape = shape_of(node)
        bias = given["self"]
        for size, dim, wanted, full in zip(
            shape_of(bias)[::-1], labels.dims(bias)[::-1], dims[::-1], shape[::-1], strict=False
        ):
            if size == full != 1:
                axes.unify(dim, wanted)
    return dims


def _label_lookup(labels: Labels, node: Node) -> Dims:
    given = list_arguments(node)
    if not labels.is_memory(given["weight"]):
        raise UnsupportedError("rows of a table that is computed")
    _, columns = labels.dims(given["weight"])
    labels.axes.mark_features(columns)
    labels.add_indices(labels.dims(given["indices"]))
    return (*labels.dims(given["indices"]), columns)


Rule = Callable[[Labels, Node], Dims]
RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, _label_pointwise),
    **dict.fromkeys((*CONSTANTS, *DRAWS), lambda labels, node: labels.make(node)),
    **dict.fromkeys(("permute", "transpose", "t"), _label_order),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _label_view),
    **dict.fromkeys(REDUCTIONS, _label_reduction),
    **dict.fromkeys(("_softmax", "_log_softmax"), _label_softmax),
    **dict.fromkeys(("mm", "addmm"), _label_product),
    "unsqueeze": _label_unsqueeze,
    "squeeze": _label_squeeze,
    "expand": _label_expand,
    "slice": _label_slice,
    "select": _label_select,
    "cat": _label_cat,
    "embedding": _label_lookup,
    "arange": lambda labels, node: labels.make(node),
}
"""How operators treat axes, by their names."""


def has_rule(node: Node, *, allows_draws: bool) -> bool:
    """Whether there is a rule for a node."""
    name = name_of(node)
    is_hidden = name in DRAWS and not allows_draws
    if is_hidden or node.target is torch.ops.aten.view.dtype:  # the same bits as numbers of another type
        return False
    return name in RULES or name in PARTS or name in ("getitem", "native_layer_norm")
