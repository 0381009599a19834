"""Tell how a graph was cut: its regions, and the operators between them, with the reasons why those run alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from torchwise.compile.programs.lowering import name_of
from torchwise.compile.programs.regions import FREE, Region
from torchwise.records.explanation import Box

Node = torch.fx.Node
Tell = Callable[[tuple[Box, ...]], object]

_listeners: list[Tell] = []


@contextlib.contextmanager
def tell_regions(tell: Tell) -> Iterator[None]:
    """Call `tell` with the boxes of each graph that is compiled in the block, in the order in which they run."""
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


def announce(
    graph: torch.fx.Graph, regions: Sequence[Region], levels: dict[Node, int], refused: dict[Node, str]
) -> None:
    """Tell those who listen how a graph was cut."""
    if _listeners:
        boxes = make_boxes(graph, regions, levels, refused)
        for tell in _listeners:
            tell(boxes)


def make_boxes(
    graph: torch.fx.Graph, regions: Sequence[Region], levels: dict[Node, int], refused: dict[Node, str]
) -> tuple[Box, ...]:
    """Return the regions, and each other operator that computes, in the order in which they run."""
    inside = {node: region for region in regions for node in region.nodes}
    found: list[tuple[int, Box]] = [
        (levels[region.nodes[0]], _box_region(region, refused)) for region in regions if region.number_of_operators
    ]
    for node in graph.nodes:
        if node.op == "call_function" and node not in inside and name_of(node) not in FREE:
            reason = refused.get(node, "no other operator can run with it")
            found.append((levels[node], Box((_name(node),), False, len(node.all_input_nodes), 1, (reason,))))
    return tuple(box for _, box in sorted(found, key=lambda pair: pair[0]))


def _box_region(region: Region, refused: dict[Node, str]) -> Box:
    operators = tuple(_name(node) for node in region.nodes if name_of(node) not in FREE)
    before = [node for node in region.inputs if node in refused]
    after = [user for node in region.outputs for user in node.users if user in refused]
    reasons = dict.fromkeys(_tell_reasons(before, "before it", refused))
    reasons |= dict.fromkeys(_tell_reasons(after, "after it", refused))
    return Box(operators, True, len(region.inputs), len(region.outputs), tuple(reasons))


def _tell_reasons(nodes: Iterable[Node], place: str, refused: dict[Node, str]) -> Iterator[str]:
    for node in nodes:
        while name_of(node) == "getitem" and isinstance(node.args[0], Node):  # one of several results
            node = node.args[0]
        yield f"{_name(node)} {place}: {refused.get(node, 'it runs alone')}"


def _name(node: Node) -> str:
    """Return the name of an operator, in full if it is not one of PyTorch's own."""
    return name_of(node) or str(node.target)
