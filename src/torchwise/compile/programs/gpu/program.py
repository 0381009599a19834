"""A region before its kernel is written: where its inputs and outputs lie, its loops, and its rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from torchwise.compile.programs.gpu.axes import Axis, Dim
from torchwise.compile.programs.gpu.labels import MOVED, PARTS, POINTWISE, Labels
from torchwise.compile.programs.gpu.loops import Loop, find_loops
from torchwise.compile.programs.gpu.passes import Passes, find_passes
from torchwise.compile.programs.gpu.tiles import TYPES
from torchwise.compile.programs.lowering import name_of, shape_of
from torchwise.compile.programs.operators import VIEWS, find_view
from torchwise.compile.programs.values import Buffer, Shape, View, row_major
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
MAX_LINES = 4000
"""Most operators of a kernel's text, each repetition of a loop once. A longer one would compile for minutes."""
MAX_WEIGHTS = 1 << 19
"""Most numbers of the matrices of a kernel's products, a loop's once. More take a minute to compile, and each
multiprocessor has to read them all."""
MAX_MANY_WEIGHTS, MANY_ROWS = 1 << 17, 1024
"""The same for more rows than these: blocks of rows take longer to compile than single ones."""
REPEATED = "a tensor has the same axis twice, as all pairs of points have"
MAX_ALONE = 1 << 14
"""Most numbers of an output that has no rows, so that one program computes all of it."""
MAX_SPAN = 1 << 31
"""Numbers of a tensor, beyond which the addresses need long integers."""

ARGUMENT_ERRORS = (LookupError, ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError)
"""Errors of Python where an operator's argument is of another kind."""


class NodeError(UnsupportedError):
    """Operators that have no code.

    Attributes:
        nodes: they.
    """

    def __init__(self, nodes: Sequence[Node], reason: str) -> None:
        super().__init__(reason)
        self.nodes = nodes


class HeavyError(NodeError):
    """Operators that are too much for one kernel, also without loops."""


@contextlib.contextmanager
def tell_node(node: Node) -> Iterator[None]:
    """Tell which operator an error is about.

    Raises:
        NodeError: an argument of it is of another kind.
    """
    try:
        yield
    except (UnsupportedError, *ARGUMENT_ERRORS) as error:
        raise NodeError([node], str(error)) from error


@dataclass
class Stored:
    """A part of an output.

    Attributes:
        node: the tensor that is written.
        view: where.
    """

    node: Node
    view: View


@dataclass
class Program:
    """A region, prepared to be written for several widths of tiles.

    Attributes:
        parts: its operators and loops, in order.
        memory: where inputs and parts of them lie.
        labels: the axes of all tensors.
        stored: the parts of its outputs.
        rows: the axes of its rows.
        multiplied: axes along which products run.
        parameters: the names of inputs and outputs.
        hidden: operators that only join values to an output.
        width: numbers of a row of its widest tensor.
        passes: those of its parts along an axis, by the numbers of the parts.
    """

    parts: list[list[Node] | Loop]
    memory: dict[Node, View]
    labels: Labels
    stored: list[Stored]
    rows: tuple[Axis, ...]
    multiplied: set[Axis]
    parameters: list[str]
    hidden: set[Node]
    width: int
    passes: dict[int, Passes]

    def count_weights(self) -> tuple[int, int]:
        """Return the numbers of the matrices of all products, a loop's once, and the bytes of those of loops."""
        numbers, repeated = 0, dict[tuple[str, int], int]()
        for node, bodies in _list_products(self.parts):
            matrix, view = _matrix_of(node).meta["val"], self.memory.get(_matrix_of(node))
            numbers += matrix.numel()
            if len(bodies) > 1 and view is not None:
                repeated[view.buffer.name, view.offset] = matrix.numel() * matrix.dtype.itemsize
        return numbers, sum(repeated.values())


def prepare(nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node], *, rolls: bool = True) -> Program:
    """Find the loops and the rows of a region.

    Args:
        nodes: its operators, in order.
        inputs: tensors that it reads.
        outputs: tensors that others read.
        rolls: whether operators that repeat are loops.

    Raises:
        UnsupportedError: it has none, or an operator in it has no rule.
    """
    memory = _find_memory(nodes, inputs)
    stored, hidden = _list_stored(outputs, memory)
    computed = [node for node in nodes if node not in memory and node not in hidden]
    if not computed:
        raise UnsupportedError("it computes nothing")
    parts: list[list[Node] | Loop] = find_loops(computed, memory, hidden) if rolls else [computed]
    lines = sum(len(part.bodies[0]) if isinstance(part, Loop) else len(part) for part in parts)
    if lines > MAX_LINES:
        raise UnsupportedError(f"it has {lines} operators outside of loops")
    _check_weights(parts)
    labels = _label(computed, memory)
    for part in parts:
        if isinstance(part, Loop):
            _unify_bodies(labels, part)
    _unify_outputs(labels, stored)
    if twice := [node for node in computed if _find_repeated(labels, node)]:
        raise NodeError(twice[:1], REPEATED)
    _mark_rest(labels, computed, stored)
    labels.settle()
    multiplied = {
        axis
        for node in computed
        if name_of(node) in ("mm", "addmm")
        for dims in (labels.dims(node), labels.dims(_matrix_of(node)))
        for axis in labels.axes.list_features(dims)
    }
    multiplied = labels.axes.list_linked(multiplied)
    rows = labels.axes.list_rows(labels.dims(stored[0].node))
    names = [memory[node].buffer.name for node in inputs] + list(dict.fromkeys(one.view.buffer.name for one in stored))
    tensors = [labels.dims(node) for node in computed if not _has_parts(node)]
    width = max(math.prod(map(labels.axes.size, labels.axes.list_features(dims))) for dims in tensors)
    passes = find_passes(parts, labels, [labels.dims(one.node) for one in stored], multiplied)
    return Program(parts, memory, labels, stored, rows, multiplied, names, hidden, width, passes)


def _list_products(parts: Sequence[list[Node] | Loop]) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each product, a loop's once, with those of all its repetitions."""
    for part in parts:
        bodies = part.bodies if isinstance(part, Loop) else [part]
        for place, node in enumerate(bodies[0]):
            if name_of(node) in ("mm", "addmm"):
                yield node, [body[place] for body in bodies]


def _check_weights(parts: Sequence[list[Node] | Loop]) -> None:
    """Refuse the product whose matrix is too much for one kernel.

    Raises:
        HeavyError: there is one. What comes after it is another region.
    """
    numbers = 0
    for node, bodies in _list_products(parts):
        numbers += _matrix_of(node).meta["val"].numel()
        if numbers > (MAX_WEIGHTS if shape_of(node)[0] <= MANY_ROWS else min(MAX_WEIGHTS, MAX_MANY_WEIGHTS)):
            raise HeavyError(bodies, f"the products of a kernel would have {numbers:,} weights")


def _find_memory(nodes: Sequence[Node], inputs: Sequence[Node]) -> dict[Node, View]:
    """Return where inputs and parts of them lie."""
    memory: dict[Node, View] = {}
    for number, node in enumerate(inputs):
        value = node.meta["val"]
        shape, strides = shape_of(node), tuple(map(int, value.stride()))
        if value.dtype not in TYPES:
            raise UnsupportedError(f"an input has {value.dtype}")
        buffer = Buffer(f"p{number}", value.dtype, shape, strides, "input")
        if buffer.span >= MAX_SPAN:
            raise UnsupportedError("an input has over two billion numbers")
        memory[node] = View(buffer, shape, strides)
    parts: dict[Node, list[View]] = {}
    for node in nodes:
        name = name_of(node)
        if name == "getitem" and node.args[0] in parts:
            memory[node] = parts[node.args[0]][node.args[1]]  # type: ignore[index]
        elif name in PARTS and node.args[0] in memory:
            parts[node] = _cut_view(node, memory[node.args[0]])  # type: ignore[index]
        elif name in VIEWS and node.all_input_nodes[0] in memory:
            try:
                memory[node] = find_view(node, memory[node.all_input_nodes[0]])
            except RuntimeError:  # such a view needs the numbers in another order, which tiles have
                continue
    return memory | {node: view[0] for node, view in parts.items() if view}


def _cut_view(node: Node, view: View) -> list[View]:
    memory = torch.empty(view.offset + view.buffer.span, dtype=view.dtype, device="meta")
    source = memory.as_strided(view.shape, view.strides, view.offset)
    found = node.target(source, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return [View(view.buffer, tuple(one.shape), tuple(one.stride()), int(one.storage_offset())) for one in found]


def _list_stored(outputs: Sequence[Node], memory: dict[Node, View]) -> tuple[list[Stored], set[Node]]:
    """Return the parts of outputs, and the nodes that only join them.

    A value that is only joined to an output is written to its place at once, in a loop by each repetition.
    """
    stored, hidden = list[Stored](), set[Node]()
    for number, node in enumerate(outputs):
        value = node.meta["val"]
        shape, strides = shape_of(node), tuple(map(int, torch.empty_like(value, device="meta").stride()))
        buffer = Buffer(f"o{number}", value.dtype, shape, strides, "output")
        if buffer.span >= MAX_SPAN:
            raise UnsupportedError("an output has over two billion numbers")
        view, passed = View(buffer, shape, strides), list[Node]()
        while name_of(node) in ("view", "_unsafe_view", "reshape") and _is_only_output(node, passed):
            passed.append(node)
            node, view = node.all_input_nodes[0], _view_as(view, shape_of(node.all_input_nodes[0]))
        if name_of(node) != "cat" or not _is_only_output(node, passed):
            stored.append(Stored(outputs[number], View(buffer, shape, strides)))
            continue
        hidden |= {node, *passed}
        shape, strides = view.shape, view.strides
        dim = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)  # type: ignore[arg-type]
        start = 0
        for source in node.args[0]:  # type: ignore[union-attr]
            assert isinstance(source, Node)
            part = View(buffer, shape_of(source), strides, start * strides[dim])
            start += shape_of(source)[dim]
            source, part = _skip_unsqueezes(source, part, node, hidden, memory)
            stored.append(Stored(source, part))
    return stored, hidden


def _is_only_output(node: Node, passed: Sequence[Node]) -> bool:
    """Whether a value is only written to an output, through views that were passed."""
    return len(node.users) == 1 and all(user.op == "output" or user in passed for user in node.users)


def _view_as(view: View, shape: Shape) -> View:
    """Return the memory of an output with other sizes, which is without gaps."""
    return View(view.buffer, shape, row_major(shape)) if view.is_contiguous else replace(view, shape=())


def _skip_unsqueezes(
    source: Node, part: View, user: Node, hidden: set[Node], memory: dict[Node, View]
) -> tuple[Node, View]:
    """Return the tensor of a part of an output, before dimensions of size 1 were added to it."""
    while name_of(source) == "unsqueeze" and list(source.users) == [user] and source not in memory:
        hidden.add(source)
        dim = int(source.args[1]) % len(part.shape)  # type: ignore[arg-type]
        shape, strides = (one[:dim] + one[dim + 1 :] for one in (part.shape, part.strides))
        part, user = replace(part, shape=shape, strides=strides), source
        source = source.all_input_nodes[0]
    return source, part


def _unify_bodies(labels: Labels, loop: Loop) -> None:
    """Note that the same place in each repetition has the same axes."""
    for first, *others in zip(*loop.bodies, strict=True):
        if name_of(first) in PARTS or name_of(first) == "native_layer_norm":
            continue
        for other in others:
            for one, two in zip(labels.dims(first), labels.dims(other), strict=True):
                labels.axes.unify(one, two)
    for place, init in loop.carried.items():
        for one, two, size in zip(labels.dims(init), labels.dims(loop.bodies[0][place]), shape_of(init), strict=True):
            if size != 1:
                labels.axes.unify(one, two)


def _unify_outputs(labels: Labels, stored: Sequence[Stored]) -> None:
    """Note that the parts of an output have the axes in common along which they are not joined."""
    first: dict[str, dict[tuple[int, int], Dim]] = {}
    for one in stored:
        known = first.setdefault(one.view.buffer.name, {})
        for size, stride, dim in zip(one.view.shape, one.view.strides, labels.dims(one.node), strict=True):
            if size != 1:
                labels.axes.unify(known.setdefault((size, stride), dim), dim)


def _matrix_of(node: Node) -> Node:
    found = node.args[2] if name_of(node) == "addmm" else node.args[1]
    assert isinstance(found, Node)
    return found


def _mark_rest(labels: Labels, computed: Sequence[Node], stored: Sequence[Stored]) -> None:
    """Mark axes as features that not all outputs have, or that are of none.

    Raises:
        UnsupportedError: no axis is left for rows.
    """
    axes = labels.axes
    outputs = [labels.dims(one.node) for one in stored]
    rows = set(axes.list_rows(outputs[0])).intersection(*(axes.list_rows(dims) for dims in outputs))
    largest = max(math.prod(map(axes.length, dims)) for dims in outputs)
    if not rows and largest > MAX_ALONE:
        raise UnsupportedError("its outputs have no rows in common")
    for dims in (*outputs, *(labels.dims(node) for node in computed if not _has_parts(node))):
        for axis in set(axes.list_rows(dims)) - rows:
            axes.mark_features((axis,))


def _has_parts(node: Node) -> bool:
    return name_of(node) in PARTS or name_of(node) == "native_layer_norm"


def _label(computed: Sequence[Node], memory: dict[Node, View]) -> Labels:
    """Find the axes of all tensors.

    The rows of a computed tensor may be read as another axis as well, as all pairs of points do. Then they must be in
    memory, so that the view by which they are read is left between two regions.

    Raises:
        NodeError: there are such views, or an operator has no rule.
    """
    between: list[Node] = []
    while True:
        labels = Labels([*memory, *between])
        for node in computed:
            if labels.is_memory(node):
                continue
            with tell_node(node):
                labels.add(node)
            if repeated := _find_repeated(labels, node):
                view = _find_view(labels, node, repeated)
                if view is None:
                    raise NodeError([node], REPEATED)
                between.append(view)
                break
        else:
            if between:
                raise NodeError(between, REPEATED)
            return labels


def _find_repeated(labels: Labels, node: Node) -> set[Axis]:
    """Return the axes that a tensor has twice."""
    if _has_parts(node):
        return set()
    axes = [axis for dim in labels.dims(node) for axis in labels.axes.resolve(dim)]
    return {axis for axis in axes if axes.count(axis) > 1}


def _find_view(labels: Labels, node: Node, twice: set[Axis]) -> Node | None:
    """Return the view by which an operator reads an axis at a later dimension than the first, or None."""
    rank = len(shape_of(node))
    first = next(place for place, dim in enumerate(labels.dims(node)) if twice.intersection(labels.axes.resolve(dim)))
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        dims = labels.dims(one)
        later = [dim for place, dim in enumerate(dims) if place + rank - len(dims) > first]
        if labels.is_memory(one) or not any(twice.intersection(labels.axes.resolve(dim)) for dim in later):
            continue
        if name_of(one) in POINTWISE:  # the view may be of what was computed before
            waiting += one.all_input_nodes
        view = None
        while name_of(one) in MOVED and not labels.is_memory(one):
            view, one = one, one.all_input_nodes[0]
        if view is not None and not labels.is_memory(one):
            return view
    return None
