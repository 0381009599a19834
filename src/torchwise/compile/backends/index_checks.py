"""Find the whole numbers that the inputs of a graph may hold, and refuse calls with others.

PyTorch raises an error for an index beyond a table. Other compilers answer, some of them with the last row for -1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import OpOverload
from torchwise._torch.symbols import varies
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.compile.backends.operator_problems import list_arguments, list_graphs
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
TAKES_PART = {"slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "getitem"}
"""Operators whose result has some of the numbers of their input."""
KEEPS_ALL = {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "repeat"),
    *("permute", "transpose", "t", "to", "_to_copy", "clone", "contiguous", "alias", "detach", "detach_"),
}
"""Operators whose result has all of the numbers of their input, and no others."""
Step = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Check:
    """Whole numbers that an input, or a part of it, may hold.

    Attributes:
        place: of the input.
        steps: lead from the input to its part.
        allowed: the numbers.
    """

    place: int
    steps: tuple[Step, ...]
    allowed: range

    def __call__(self, inputs: Sequence[torch.Tensor], name: str) -> None:
        """Refuse inputs with other numbers.

        Raises:
            UnsupportedError: there is one. The original model answers the call, or raises its own error.
        """
        value: Any = inputs[self.place]
        for step in self.steps:
            value = step(value)
        if not value.numel():
            return
        least, most = map(int, torch.aminmax(value))
        if least < self.allowed.start or most >= self.allowed.stop:
            raise UnsupportedError(
                f"an input has whole numbers from {least} to {most}, and {name} can take {self.allowed.start} to "
                f"{self.allowed.stop - 1} for it"
            )


def find_checks(program: torch.export.ExportedProgram, widest: range | None) -> list[Check]:
    """Return the checks of the inputs of a program: of those that are indices, and of all of 64 bits for `widest`.

    Indices that the model computes have none.

    Raises:
        UnsupportedError: a branch, a loop or a region has indices, which are not followed to inputs.
    """
    for graph, caller in list_graphs(program):
        if caller is not None and any(True for node in graph.nodes for _ in _list_indices(node)):
            raise OperatorError("it has indices inside a branch or a region, which are not checked there", [caller])
    places = {str(name): place for place, name in enumerate(program.graph_signature.user_inputs)}
    found: dict[tuple[int, tuple[Node, ...]], range] = {}
    for node in program.graph.nodes:
        if widest is not None and node.name in places and _dtype_of(node) is torch.int64:
            found[places[node.name], ()] = widest
    for node in program.graph.nodes:
        for index, table, dim in _list_indices(node):
            source, steps = _find_source(index)
            size = table.meta["val"].shape[dim]
            if source.name in places and not varies(size) and not _is_float(source):
                key = places[source.name], steps
                found[key] = min(found.get(key, range(int(size))), range(int(size)), key=lambda one: one.stop)
    return [Check(place, tuple(map(_make_step, steps)), allowed) for (place, steps), allowed in found.items()]


def _list_indices(node: Node) -> Iterator[tuple[Node, Node, int]]:
    """Yield the indices that an operator takes, each with the tensor and the dimension that it leads into."""
    if not isinstance(node.target, OpOverload):
        return
    given = list_arguments(node)
    indices = given.get("indices")
    if isinstance(indices, Node) and isinstance(given.get("weight"), Node):
        yield indices, given["weight"], 0
    elif isinstance(given.get("index"), Node) and isinstance(given.get("dim"), int):
        yield given["index"], given["self"], given["dim"]
    elif isinstance(indices, (list, tuple)):
        dim = 0
        for one in indices:
            is_mask = isinstance(one, Node) and _dtype_of(one) is torch.bool
            if isinstance(one, Node) and not is_mask:
                yield one, given["self"], dim
            dim += one.meta["val"].dim() if is_mask else 1


def _find_source(index: Node) -> tuple[Node, tuple[Node, ...]]:
    """Return the node whose numbers an index has, and the steps that lead from it to a part of it.

    If a step depends on sizes that vary, there are none: then all of the source's numbers count.
    """
    steps = list[Node]()
    while (name := name_of(index)) in TAKES_PART or name in KEEPS_ALL:
        steps.append(index)
        index = index.all_input_nodes[0]
    is_whole = all(name_of(step) in KEEPS_ALL for step in steps)
    is_fixed = all(len(step.all_input_nodes) == 1 and step.args[0] is step.all_input_nodes[0] for step in steps)
    return index, () if is_whole or not is_fixed else tuple(reversed(steps))


def _make_step(node: Node) -> Step:
    target: Any = node.target
    rest, named = node.args[1:], dict(node.kwargs)
    return lambda value: target(value, *rest, **named)


def name_of(node: Node) -> str:
    """Return the name of a node's operator, without its overload, or ""."""
    if node.target is operator.getitem:
        return "getitem"
    return node.target._schema.name.removeprefix("aten::") if isinstance(node.target, OpOverload) else ""


def _dtype_of(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _is_float(node: Node) -> bool:
    dtype = _dtype_of(node)
    return dtype is None or dtype.is_floating_point
