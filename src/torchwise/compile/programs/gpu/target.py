"""Regions of a graph on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set

import torch

from torchwise.compile.programs.gpu.constants import copy_constants
from torchwise.compile.programs.gpu.labels import MAX_MATRIX, has_rule
from torchwise.compile.programs.gpu.launch import Kernel
from torchwise.compile.programs.gpu.parts import take_parts_first
from torchwise.compile.programs.gpu.program import ARGUMENT_ERRORS, HeavyError, NodeError, prepare
from torchwise.compile.programs.gpu.tiles import TYPES
from torchwise.compile.programs.lowering import name_of
from torchwise.compile.programs.regions import Region, strides_of
from torchwise.errors import UnsupportedError

Node = torch.fx.Node


class GpuTarget:
    """Regions as kernels of Triton.

    Args:
        device: that tensors are on.
        draws: whether kernels draw random numbers, which are others than PyTorch's, of the same distribution.
    """

    def __init__(self, device: torch.device, *, draws: bool = False) -> None:
        self._device, self._draws, self._tuned = device, draws, itertools.count(1)

    def find_refusal(self, node: Node) -> str | None:
        """Return why a node can be in no region."""
        if not has_rule(node, allows_draws=self._draws):
            return f"{node.target} is not known"
        value = node.meta.get("val")
        for one in value if isinstance(value, (tuple, list)) else [value]:
            if one is None and isinstance(value, (tuple, list)):
                continue
            if not isinstance(one, torch.Tensor):
                return f"{node.target} returns no tensor"
            if any(not isinstance(size, int) for size in one.shape):
                return "sizes vary"
            if one.device != self._device or one.layout is not torch.strided:
                return f"a tensor is on {one.device}, or sparse"
            if one.dtype not in TYPES:
                return f"a tensor has {one.dtype}"
            if one.numel() == 0:
                return "a tensor has no numbers"
        if name_of(node) in ("mm", "addmm"):
            rows, columns = node.args[-1].meta["val"].shape  # type: ignore[union-attr]
            if rows * columns > MAX_MATRIX:
                return f"a product with a matrix of {rows} by {columns}, which a library does as well"
        return None

    def split(self, nodes: list[Node]) -> list[list[Node]]:
        """Return the nodes that read each other's values as regions of their own, as each may have other rows."""
        group: dict[Node, Node] = {node: node for node in nodes}

        def find(node: Node) -> Node:
            while group[node] is not node:
                node = group[node]
            return node

        for node in nodes:
            for one in node.all_input_nodes:
                if one in group:
                    group[find(node)] = find(one)
        found: dict[Node, list[Node]] = {}
        for node in nodes:
            found.setdefault(find(node), []).append(node)
        return list(found.values())

    def copy_constants(self, graph: torch.fx.Graph, regions: Sequence[Region], refused: Set[Node]) -> bool:
        """Have regions compute the values that depend on no input. Return whether the graph changed."""
        return copy_constants(graph, regions, refused)

    def lower(self, region: Region) -> list[tuple[Node, str]]:
        """Make the kernel of a region."""
        for node in region.inputs:
            value = node.meta.get("val")
            if not self._is_input(value):
                return [(user, "an input of it is no plain tensor") for user in region.nodes if user in node.users]
        try:
            failed = self._write(region, rolls=True)
            return self._write(region, rolls=False) if failed else []  # perhaps only a loop has no code
        except HeavyError as error:
            return [(node, str(error)) for node in error.nodes]

    def _write(self, region: Region, *, rolls: bool) -> list[tuple[Node, str]]:
        """Make the kernel of a region, with loops if it rolls. Return the nodes that have no code, and why."""
        graph, origins = copy_region(region)
        try:
            take_parts_first(graph, origins)
            inputs = graph.find_nodes(op="placeholder")
            outputs: tuple[Node, ...] = graph.output_node().args[0]  # type: ignore[assignment]
            nodes = [node for node in graph.nodes if node.op == "call_function"]
            program = prepare(nodes, inputs, outputs, rolls=rolls)
            region.code = Kernel(
                program, _like(region.inputs), _like_outputs(region.outputs), self._device, self._tuned
            )
        except HeavyError as error:
            raise HeavyError([origins[node] for node in error.nodes], str(error)) from error
        except NodeError as error:
            return [(origins[node], str(error)) for node in error.nodes]
        except (UnsupportedError, *ARGUMENT_ERRORS) as error:
            return [(node, str(error)) for node in region.nodes]  # an argument of another kind
        return []

    def _is_input(self, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.dtype in TYPES
            and value.device == self._device
            and value.layout is torch.strided
            and not value.is_neg()
            and all(isinstance(size, int) for size in value.shape)
            and value.numel() > 0
        )


def copy_region(region: Region) -> tuple[torch.fx.Graph, dict[Node, Node]]:
    """Return a region's operators as a graph, and the region's own node for each of its nodes."""
    graph, values = torch.fx.Graph(), dict[Node, Node]()
    for number, node in enumerate(region.inputs):
        values[node] = graph.placeholder(f"input_{number}")
        values[node].meta["val"] = node.meta["val"]
    for node in region.nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[node] for node in region.outputs))
    return graph, {copy: node for node, copy in values.items()}


def _like(nodes: list[Node]) -> list[torch.Tensor]:
    """Return tensors without memory that lie like those of nodes."""
    values = [node.meta["val"] for node in nodes]
    return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in values]


def _like_outputs(nodes: list[Node]) -> list[torch.Tensor]:
    """Return tensors without memory that lie like outputs."""
    values = [(node.meta["val"], strides_of(node)) for node in nodes]
    return [torch.empty_strided(one.shape, strides, dtype=one.dtype, device="meta") for one, strides in values]
