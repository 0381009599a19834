"""A graph in parts, with equal parts as one, and the program that runs them in order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchwise.compile.loop_rolling import repetitions
from torchwise.compile.loop_rolling.graph_index import GraphIndex
from torchwise.compile.loop_rolling.repetitions import Repetition
from torchwise.errors import UnsupportedError

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes from `start` up to `stop`, with their input and output values."""

    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a compiled part, and the values that are not used after it."""

    body: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
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
            values.update(zip(step.outputs, step.body(*[values[value] for value in step.inputs]), strict=True))
            for value in step.dead:
                del values[value]
        return [None if value is None else values[value] for value in self._results]


def split_graph(index: GraphIndex, rolled: Sequence[Repetition]) -> list[Part]:
    """Cut a graph into the repetitions of each stretch and the parts between.

    Only tensors and sizes may cross a cut.
    """
    found = list(_iter_parts(index, rolled))
    for part in found:
        for value in (*part.inputs, *part.outputs):
            if index.kind(value) is None:
                raise UnsupportedError(f"{type(index.values[value]).__name__} crosses the border between two parts")
    return found


def compile_parts(index: GraphIndex, cut: Sequence[Part], compiler: Compiler) -> Program:
    """Compile each distinct part once, on the first of its kind."""
    bodies: dict[Hashable, Callable[..., Sequence[Any]]] = {}
    last = {value: place for place, part in enumerate(cut) for value in part.inputs}
    kept = set(index.results)
    steps = []
    for place, part in enumerate(cut):
        kind = (
            repetitions.key(index, part.start, part.stop),
            tuple(value - part.start for value in part.outputs),
        )
        if kind not in bodies:
            bodies[kind] = compiler(extract_part(index, part), [index.values[value] for value in part.inputs])
        dead = {v for v in part.inputs if last[v] == place} | {v for v in part.outputs if v not in last}
        steps.append(Step(bodies[kind], part.inputs, part.outputs, tuple(dead - kept)))
    return Program(steps, index.results)


def extract_part(index: GraphIndex, part: Part) -> torch.fx.GraphModule:
    """Return the graph of one part: it takes the part's inputs, and returns a tuple of its outputs."""
    graph = torch.fx.Graph()
    new: dict[Node, Node] = {}
    inputs = index.module.graph.find_nodes(op="placeholder")
    for value in part.inputs:
        old = index.nodes[value] if value >= 0 else inputs[-1 - value]
        new[old] = graph.placeholder(old.name)
        new[old].meta["example_value"] = index.values[value]

    def map_node(node: Node) -> Node:
        if node not in new:  # a constant of the module
            new[node] = graph.node_copy(node)
        return new[node]

    for node in index.nodes[part.start : part.stop]:
        new[node] = graph.node_copy(node, map_node)
    graph.output(tuple(new[index.nodes[value]] for value in part.outputs))
    return torch.fx.GraphModule(index.module, graph)


def _iter_parts(index: GraphIndex, rolled: Sequence[Repetition]) -> Iterator[Part]:
    done = 0
    for stretch in rolled:
        yield from _iter_unrepeated(index, done, stretch.start)
        places = repetitions.outputs(index, stretch)
        for start in range(stretch.start, stretch.stop, stretch.period):
            inputs = tuple(index.input_values(start, start + stretch.period))
            yield Part(start, start + stretch.period, inputs, tuple(start + place for place in places))
        done = stretch.stop
    yield from _iter_unrepeated(index, done, len(index.nodes))


def _iter_unrepeated(index: GraphIndex, start: int, stop: int) -> Iterator[Part]:
    outputs = tuple(index.output_values(start, stop))
    if outputs or any(index.writes[start:stop]):
        yield Part(start, stop, tuple(index.input_values(start, stop)), outputs)
