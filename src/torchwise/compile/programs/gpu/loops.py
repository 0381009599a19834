"""Find the loops that an export unrolled: runs of operators that repeat, each with values of the one before it.

Constants may differ between repetitions, such as the time of a step. So may parts of the same input, such as `x[:, t]`,
if they lie evenly in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.compile.loop_rolling.repetitions import Repetition, repetitions
from torchwise.compile.programs.values import View

Node = torch.fx.Node
MAX_TURNS = 64
"""Places in a period that are tried as the loop's beginning."""


@dataclass
class Loop:
    """A run of equal bodies.

    Attributes:
        bodies: the nodes of each repetition, in order.
        carried: places in a body whose values the next body reads, and the node that the first body reads instead.
        tables: the constants that differ, by place and argument.
        steps: by how many numbers the memory of a part of an input lies further in each body, by place and argument.
    """

    bodies: list[list[Node]]
    carried: dict[int, Node] = field(default_factory=dict)
    tables: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    steps: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def times(self) -> int:
        """The number of repetitions."""
        return len(self.bodies)


def find_loops(nodes: Sequence[Node], memory: dict[Node, View], hidden: set[Node]) -> list[list[Node] | Loop]:
    """Return the nodes in order, with runs of equal bodies as loops.

    Args:
        nodes: operators that compute.
        memory: where tensors lie that are inputs, or parts of them.
        hidden: operators that only join values to an output, and so may read those of each repetition.
    """
    found: dict[tuple[int, int], Loop] = {}

    def verify(stretch: Repetition) -> Repetition | None:
        best: tuple[tuple[int, int], Repetition, Loop] | None = None
        for turn in range(min(stretch.period, MAX_TURNS)):
            start = stretch.start + turn
            for run, loop in _list_runs(nodes, memory, hidden, start, stretch):
                rank = (-(run.stop - run.start), len(loop.carried))
                if best is None or rank < best[0]:
                    best = (rank, run, loop)
            if best is not None and len(best[2].carried) <= 1:
                break
        if best is None:
            return None
        found[best[1].start, best[1].stop] = best[2]
        return best[1]

    labels = [_label(node) for node in nodes]
    parts: list[list[Node] | Loop] = []
    place = 0
    for stretch in repetitions(labels, verify):
        parts += [list(nodes[place : stretch.start]), found[stretch.start, stretch.stop]]
        place = stretch.stop
    return [*parts, list(nodes[place:])]


def _label(node: Node) -> Any:
    value = node.meta.get("val")
    tensors = value if isinstance(value, (tuple, list)) else [value]
    kinds = tuple((tuple(one.shape), one.dtype) for one in tensors if isinstance(one, torch.Tensor))
    return str(node.target), kinds, tuple(_describe(one) for one in list_arguments(node))


def _describe(argument: Any) -> Any:
    """Return the part of an argument that all repetitions share. Fractions may differ, as they are no sizes."""
    return "tensor" if isinstance(argument, Node) else float if isinstance(argument, float) else repr(argument)


def list_arguments(node: Node) -> list[Any]:
    """Return all arguments of a node, those in lists one by one."""
    found: list[Any] = []
    for one in (*node.args, *node.kwargs.values()):
        found += one if isinstance(one, (list, tuple)) else [one]
    return found


def _list_runs(
    nodes: Sequence[Node], memory: dict[Node, View], hidden: set[Node], start: int, stretch: Repetition
) -> Iterator[tuple[Repetition, Loop]]:
    """Yield the runs of equal bodies in a stretch, from a place on."""
    period = stretch.period
    bodies = [list(nodes[place : place + period]) for place in range(start, stretch.stop - period + 1, period)]
    first = 0
    while first < len(bodies) - 2:
        length, loop = _match(bodies[first:], memory, hidden)
        if loop is not None and length > 2:
            begin = start + first * period
            yield Repetition(begin, begin + length * period, period), loop
        first += max(length - 1, 1)


def _match(bodies: Sequence[list[Node]], memory: dict[Node, View], hidden: set[Node]) -> tuple[int, Loop | None]:
    """Return how many bodies from the first on are one loop, and that."""
    places = {node: (number, place) for number, body in enumerate(bodies) for place, node in enumerate(body)}
    length = 1
    while length < len(bodies) and _follows(bodies, length, places, memory):
        length += 1
    while length > 2:
        loop = _make_loop(bodies[:length], places, memory) if _is_closed(bodies[:length], hidden) else None
        if loop is not None:
            return length, loop
        length -= 1
    return length, None


def _follows(
    bodies: Sequence[list[Node]], number: int, places: dict[Node, tuple[int, int]], memory: dict[Node, View]
) -> bool:
    """Whether a body reads the values that the one before it reads, one repetition later."""
    for own, before in zip(bodies[number], bodies[number - 1], strict=True):
        for one, other in zip(list_arguments(own), list_arguments(before), strict=True):
            if not isinstance(one, Node):
                continue
            now, then = places.get(one), places.get(other)
            if now is not None and now[0] == number:
                if then != (number - 1, now[1]):
                    return False
            elif now is not None and now[0] == number - 1:
                # The first body may read a value from before the loop.
                if number > 1 and then != (number - 2, now[1]):
                    return False
                if number == 1 and then is not None:
                    return False
            elif (now is not None and now[0] < number - 1) or (one is not other and not {one, other} <= memory.keys()):
                return False
    return True


def _is_closed(bodies: Sequence[list[Node]], hidden: set[Node]) -> bool:
    """Whether only the last body's values are read outside, or those of all bodies by the joining of an output."""
    inside = {node for body in bodies for node in body}
    return all(
        user in inside or user in hidden or user.op == "output"
        for body in bodies[:-1]
        for node in body
        for user in node.users
    )


def _make_loop(
    bodies: Sequence[list[Node]], places: dict[Node, tuple[int, int]], memory: dict[Node, View]
) -> Loop | None:
    """Return bodies that follow each other as a loop.

    It is None if parts of inputs do not lie evenly, or if a value begins as another kind.
    """
    loop = Loop(list(bodies))
    for place in range(len(bodies[0])):
        for slot, arguments in enumerate(zip(*(list_arguments(body[place]) for body in bodies), strict=True)):
            if not isinstance(arguments[0], Node):
                if any(one != arguments[0] for one in arguments):
                    loop.tables[place, slot] = list(arguments)
                continue
            source = places.get(arguments[1])
            if source is not None and source[0] == 0 and places.get(arguments[0], (-1,))[0] != 0:
                if loop.carried.setdefault(source[1], arguments[0]) is not arguments[0]:
                    return None
                if not _is_alike(arguments[0], bodies[0][source[1]]):
                    return None
            elif source is None and any(one is not arguments[0] for one in arguments):
                step = _find_step([memory[one] for one in arguments])
                if step is None:
                    return None
                loop.steps[place, slot] = step
    return loop


def _is_alike(one: Node, other: Node) -> bool:
    first, second = one.meta["val"], other.meta["val"]
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return bool((first.shape, first.dtype) == (second.shape, second.dtype))


def _find_step(views: Sequence[View]) -> int | None:
    """Return how much further each part of an input lies than the one before it, or None if that varies."""
    first = views[0]
    step = views[1].offset - first.offset
    for number, view in enumerate(views):
        if (view.buffer, view.shape, view.strides) != (first.buffer, first.shape, first.strides):
            return None
        if view.offset != first.offset + number * step:
            return None
    return step
