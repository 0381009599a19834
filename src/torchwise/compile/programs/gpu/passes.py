"""Passes along an axis: reductions of numbers that nothing else reads, part by part in a loop.

The forces between n points are n by n numbers, of which only the sums along one axis are read. A program has a block of
rows. It goes along the other axis, and holds one part of it at a time. A reduction that reads another one, as the sum
of a softmax reads the maximum, needs another pass, which computes the numbers anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from torchwise.compile.backends.operator_problems import list_arguments
from torchwise.compile.programs.gpu.axes import Axis, Dims
from torchwise.compile.programs.gpu.labels import CONSTANTS, MOVED, PARTS, POINTWISE, Labels, reduced_dims
from torchwise.compile.programs.gpu.loops import Loop
from torchwise.compile.programs.gpu.lowering import Lowering
from torchwise.compile.programs.gpu.reductions import Gathering
from torchwise.compile.programs.gpu.tiles import Value
from torchwise.compile.programs.lowering import name_of

Node = torch.fx.Node
MIN_SIZE = 256
"""Fewest points of an axis that a program goes along. Fewer are two tiles at most."""
MAX_STAGES = 3
"""Most passes along an axis, as each computes the numbers anew."""
GATHERED = ("sum", "mean", "amax", "amin")
INSIDE = {*POINTWISE, *MOVED, *CONSTANTS, *GATHERED, "arange", "slice", "select"}
"""Operators that each part of an axis goes through by itself."""


@dataclass
class Stage:
    """One pass along an axis.

    Attributes:
        before: operators that are computed before it.
        inside: those of each part.
        reductions: along the axis.
    """

    before: list[Node] = field(default_factory=list)
    inside: list[Node] = field(default_factory=list)
    reductions: list[Node] = field(default_factory=list)


@dataclass
class Passes:
    """The passes along an axis.

    Attributes:
        axis: it.
        stages: one after another.
        after: operators that are computed after them.
    """

    axis: Axis
    stages: list[Stage]
    after: list[Node]


def find_passes(
    parts: Sequence[list[Node] | Loop], labels: Labels, outputs: Sequence[Dims], multiplied: set[Axis]
) -> dict[int, Passes]:
    """Return the passes of each part of a program that has any, by its number.

    Args:
        parts: the operators and loops of a program.
        labels: the axes of all tensors, settled.
        outputs: the dimensions that are written to memory.
        multiplied: axes along which products run.
    """
    axes, owners = labels.axes, dict[Axis, set[int]]()
    for number, part in enumerate(parts):
        for node in part if not isinstance(part, Loop) else [node for body in part.bodies for node in body]:
            for axis in _list_axes(labels, node):
                owners.setdefault(axis, set()).add(number)
    kept = {axis for dims in outputs for axis in axes.list_features(dims)} | multiplied
    chosen = [
        axis
        for axis in owners
        if axes.size(axis) >= MIN_SIZE
        and axis not in kept
        and axes.is_feature(axis)
        and axes.list_linked((axis,)) == {axis}
        and len(axes.list_segments(axis, axes.size(axis))) == 1
    ]
    found: dict[int, Passes] = {}
    for axis in sorted(chosen, key=axes.size, reverse=True):
        number, *others = owners[axis]
        part = parts[number]
        if not others and number not in found and not isinstance(part, Loop):
            passes = _split(part, labels, axis)
            if passes is not None:
                found[number] = passes
    return found


def _list_axes(labels: Labels, node: Node) -> set[Axis]:
    has_parts = name_of(node) in PARTS or name_of(node) == "native_layer_norm"
    listed = labels.parts(node) if has_parts else [labels.dims(node)]
    return {axis for dims in listed for dim in dims for axis in labels.axes.resolve(dim)}


def _split(nodes: Sequence[Node], labels: Labels, axis: Axis) -> Passes | None:
    """Return the passes of some operators along an axis, or None if one of them does more than reduce it."""
    wide = {node for node in nodes if axis in _list_axes(labels, node)}
    reductions = list[Node]()
    for node in nodes:
        if node not in wide and any(axis in _list_axes(labels, one) for one in node.all_input_nodes):
            reductions.append(node)
    names = {name_of(node) for node in wide}
    if not reductions or not names <= INSIDE or not {name_of(node) for node in reductions} <= set(GATHERED):
        return None

    def varies(node: Node) -> bool:
        return node in varying or (labels.is_memory(node) and axis in _list_axes(labels, node))

    varying = set[Node]()  # others have the axis by expansion only
    for node in nodes:
        if node in wide and (name_of(node) == "arange" or any(varies(one) for one in node.all_input_nodes)):
            varying.add(node)
    if not all(varies(node.all_input_nodes[0]) for node in reductions):
        return None
    turns: dict[Node, int] = {}
    for node in nodes:
        turns[node] = max((turns[one] + (one in reductions) for one in node.all_input_nodes if one in turns), default=0)
    stages = [Stage() for _ in range(max(turns[node] for node in reductions) + 1)]
    if len(stages) > MAX_STAGES:
        return None
    for turn, stage in enumerate(stages):
        stage.before = [one for one in nodes if turns[one] == turn and one not in wide and one not in reductions]
        stage.reductions = [one for one in reductions if turns[one] == turn]
        needed = set(stage.reductions)
        for node in reversed(nodes):
            if node in needed:
                needed.update(one for one in node.all_input_nodes if one in wide)
        stage.inside = [node for node in nodes if node in needed and node in wide]
    after = [one for one in nodes if turns[one] >= len(stages) and one not in wide and one not in reductions]
    return Passes(axis, stages, after)


def write_pass(
    made: Lowering,
    axis: Axis,
    stage: Stage,
    dims_of: Callable[[Node], Dims],
    read: Callable[[Node], Value],
    lower: Callable[[Node], None],
) -> dict[Node, Value]:
    """Write one pass along an axis as a loop, and return the values of its reductions.

    Args:
        made: the text.
        axis: it.
        stage: the operators.
        dims_of: returns the dimensions of an operator's output.
        read: returns the value of a tensor.
        lower: writes an operator inside.

    Raises:
        UnsupportedError: an operator has arguments of another kind.
    """
    tiles, inside = made.tiles, set(stage.inside)
    for node in (*stage.inside, *stage.reductions):  # so that the loop does not load again what all parts share
        for one in node.all_input_nodes:
            if one not in inside and axis not in tiles.axes.list_features(dims_of(one)):
                made.to_registers(read(one))
    place, kept = len(tiles.lines), tiles.begin_pass(axis)
    for node in stage.inside:
        lower(node)
    gathered: list[tuple[Node, Gathering, Value]] = []
    for node in stage.reductions:
        source = read(node.all_input_nodes[0])
        gathering = Gathering(made, node, source, reduced_dims(list_arguments(node), len(source.dims)))
        gathered.append((node, gathering, gathering.begin(dims_of(node), axis, place)))
    tiles.end_pass(axis, kept)
    return {node: gathering.end(partial, axis) for node, gathering, partial in gathered}
