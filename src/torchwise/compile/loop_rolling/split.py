"""A graph in parts, with equal parts as one, and the program that runs them in order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchwise.compile.loop_rolling import repeated_subgraphs
from torchwise.compile.loop_rolling.graph_index import GraphIndex
from torchwise.compile.loop_rolling.periods import Repetition
from torchwise.errors import UnsupportedError

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes from `start` up to `stop`: the values they take, and the values they give."""

    start: int
    stop: int
    taken: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a compiled part, and the values that nobody needs after it."""

    body: Callable[..., Sequence[Any]]
    taken: tuple[int, ...]
    given: tuple[int, ...]
    dead: tuple[int, ...]


class Program:
    """Calls parts in order. It takes and returns the same as the graph."""

    def __init__(self, steps: Sequence[Step], results: Sequence[int | None]) -> None:
        self._steps = tuple(steps)
        self._results = tuple(results)

    def __call__(self, *args: Any) -> list[Any]:
        """Run all steps. A value is dropped after its last use, as eager drops it."""
        values = {-1 - place: value for place, value in enumerate(args)}
        for step in self._steps:
            values.update(zip(step.given, step.body(*[values[value] for value in step.taken]), strict=True))
            for value in step.dead:
                del values[value]
        return [None if value is None else values[value] for value in self._results]


def split_graph(flow: GraphIndex, rolled: Sequence[Repetition]) -> list[Part]:
    """Cut a graph into the repetitions of each stretch and the parts between.

    Raises:
        UnsupportedError: a value that is no tensor would cross a cut.
    """
    found = list(_iter_parts(flow, rolled))
    for part in found:
        for value in (*part.taken, *part.given):
            if flow.kind(value) is None:
                raise UnsupportedError(f"{type(flow.values[value]).__name__} crosses the border between two parts")
    return found


def compile_parts(flow: GraphIndex, cut: Sequence[Part], compiler: Compiler) -> Program:
    """Compile each distinct part once, on the first of its kind."""
    bodies: dict[Hashable, Callable[..., Sequence[Any]]] = {}
    last = {value: place for place, part in enumerate(cut) for value in part.taken}
    kept = set(flow.results)
    steps = []
    for place, part in enumerate(cut):
        kind = (repeated_subgraphs.key(flow, part.start, part.stop), tuple(value - part.start for value in part.given))
        if kind not in bodies:
            bodies[kind] = compiler(extract_part(flow, part), [flow.values[value] for value in part.taken])
        dead = {v for v in part.taken if last[v] == place} | {v for v in part.given if v not in last}
        steps.append(Step(bodies[kind], part.taken, part.given, tuple(dead - kept)))
    return Program(steps, flow.results)


def extract_part(flow: GraphIndex, part: Part) -> torch.fx.GraphModule:
    """Return the graph of one part: it takes the part's inputs, and returns a tuple of its outputs."""
    graph = torch.fx.Graph()
    new: dict[Node, Node] = {}
    inputs = flow.module.graph.find_nodes(op="placeholder")
    for value in part.taken:
        old = flow.nodes[value] if value >= 0 else inputs[-1 - value]
        new[old] = graph.placeholder(old.name)
        new[old].meta["example_value"] = flow.values[value]

    def map_node(node: Node) -> Node:
        if node not in new:  # a constant of the module
            new[node] = graph.node_copy(node)
        return new[node]

    for node in flow.nodes[part.start : part.stop]:
        new[node] = graph.node_copy(node, map_node)
    graph.output(tuple(new[flow.nodes[value]] for value in part.given))
    return torch.fx.GraphModule(flow.module, graph)


def _iter_parts(flow: GraphIndex, rolled: Sequence[Repetition]) -> Iterator[Part]:
    done = 0
    for stretch in rolled:
        yield from _iter_unrepeated(flow, done, stretch.start)
        places = repeated_subgraphs.outputs(flow, stretch)
        for start in range(stretch.start, stretch.stop, stretch.period):
            taken = tuple(flow.input_values(start, start + stretch.period))
            yield Part(start, start + stretch.period, taken, tuple(start + place for place in places))
        done = stretch.stop
    yield from _iter_unrepeated(flow, done, len(flow.nodes))


def _iter_unrepeated(flow: GraphIndex, start: int, stop: int) -> Iterator[Part]:
    given = tuple(flow.output_values(start, stop))
    if given or any(flow.writes[start:stop]):
        yield Part(start, stop, tuple(flow.input_values(start, stop)), given)
