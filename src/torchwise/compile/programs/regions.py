"""Find the regions of a graph of operators, and put their code in the place of their operators.

A region is as large as it can be: all operators that regions take and between which no other operator must run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.fx.node import map_arg

from torchwise.compile.programs.lowering import Lowering, name_of
from torchwise.compile.programs.operators import VIEWS, is_known, lower
from torchwise.compile.programs.source import RegionCode
from torchwise.compile.programs.values import C_TYPES, Value
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
MAX_TENSORS = 256
"""Most inputs and outputs of a region (`MOST` in `native/region.h`)."""
MAX_NODES = 5000
"""Most operators of a graph. The compiler of a longer one would take minutes."""
MAX_ELEMENTS = 1 << 21
"""Most numbers of a tensor of a region. Larger ones are limited by memory, and PyTorch has threads for them."""
CHECK = "_linalg_check_errors"
"""An operator without an output, which a region takes with the one whose errors it tells."""
MAX_PASSES = 40
"""Times that regions are made anew without the operators whose kernels could not be made."""
PARTS = ("split", "split_with_sizes", "unbind")
"""Operators whose outputs are several parts of the same memory."""
COPIED = "torchwise_copied"
"""Set in `meta` of an operator that has no input, and is computed in the region of those that read it."""
FREE = {"getitem", CHECK, *VIEWS}
"""Operators that compute nothing."""


@dataclass
class Region:
    """A region of a graph.

    Attributes:
        nodes: its operators, in order.
        inputs: tensors that it reads.
        outputs: tensors that others read.
        code: its kernels, as the target made them.
    """

    nodes: list[Node]
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    code: Any = None

    @property
    def number_of_operators(self) -> int:
        """The number of operators that compute."""
        return sum(name_of(node) not in FREE for node in self.nodes)


class Target(Protocol):
    """A kind of device, and the code that regions have there."""

    def find_refusal(self, node: Node) -> str | None:
        """Return why a node can be in no region, by what is known before its kernels are made."""

    def split(self, nodes: list[Node]) -> list[list[Node]]:
        """Return the nodes between which no other operator must run as the nodes of several regions."""

    def copy_constants(self, graph: torch.fx.Graph, regions: Sequence[Region], refused: Set[Node]) -> bool:
        """Have regions compute values that they would read of others, if faster. Return whether the graph changed."""

    def lower(self, region: Region) -> list[tuple[Node, str]]:
        """Make the code of a region. Return the nodes that have none, and why."""


def find_regions(graph: torch.fx.Graph, target: Target) -> tuple[list[Region], dict[Node, int], dict[Node, str]]:
    """Return the regions, the level of each node, and why nodes are in no region."""
    if len(graph.nodes) > MAX_NODES:
        raise UnsupportedError(f"it has {len(graph.nodes)} operators, and regions have at most {MAX_NODES}")
    refused: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op == "call_function" and (reason := target.find_refusal(node)) is not None:
            refused[node] = reason
            if "as_strided" in name_of(node):
                refused |= dict.fromkeys(_list_views(node), "its memory is read beyond it")
    for node in graph.output_node().all_input_nodes:
        if node.op == "call_function" and strides_of(node) != tuple(node.meta["val"].stride()):
            refused |= dict.fromkeys((node, *_list_views(node)), "an output has gaps in its memory")
    for _ in range(MAX_PASSES):
        levels = _find_levels(graph, refused)
        order = {node: place for place, node in enumerate(graph.nodes)}
        by_level: dict[int, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            if node.op == "call_function" and node not in refused:
                by_level[levels[node]].append(node)
        regions = [Region(nodes) for level in sorted(by_level) for nodes in target.split(by_level[level])]
        for region in regions:
            _find_borders(region, order)
        if target.copy_constants(graph, regions, refused.keys()):
            continue
        failed = [found for region in regions for found in target.lower(region)]
        if not failed and not _lay_out_outputs(graph, regions):
            return regions, levels, refused
        refused.update(failed)
    raise UnsupportedError(f"too many of its operators have arguments of other kinds: {tell_refusals(refused)}")


def _lay_out_outputs(graph: torch.fx.Graph, regions: Sequence[Region]) -> bool:
    """Note how the outputs of regions lie in memory, and all that is computed from them. Return whether any changed.

    A view that a region returns has no gaps. A region whose input it is would refuse it if it expected them.
    """
    changed = set[Node]()
    inside = {node for region in regions for node in region.nodes}
    outputs = {node for region in regions for node in region.outputs}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node in outputs and tuple(value.stride()) != strides_of(node):
            node.meta["val"] = value.new_empty_strided(value.shape, strides_of(node))
            changed.add(node)
        elif node.op == "call_function" and node not in inside and not changed.isdisjoint(node.all_input_nodes):
            node.meta["val"] = _compute_value(node)
            changed.add(node)
    return bool(changed)


def _compute_value(node: Node) -> Any:
    """Return a node's tensors without memory, computed anew from those of its inputs."""
    value = node.meta.get("val")
    mode = next((one.fake_mode for one in _list(value) if hasattr(one, "fake_mode")), None)
    if mode is None:
        return value

    def read(one: Node) -> Any:
        given = one.meta["val"]
        if not isinstance(given, torch.Tensor):
            return given
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)

    with mode:  # of the export, which the inputs of the graph are not from
        args, kwargs = map_arg((node.args, node.kwargs), read)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def _list_views(node: Node) -> Iterator[Node]:
    """Yield the views through which an operator reads memory, which a region's output would not have around it."""
    for one in node.all_input_nodes:
        if name_of(one) in (*VIEWS, *PARTS, "getitem"):
            yield one
            yield from _list_views(one)


class CpuTarget:
    """Regions as C++."""

    def find_refusal(self, node: Node) -> str | None:
        """Return why a node can be in no region."""
        return _find_refusal(node)

    def split(self, nodes: list[Node]) -> list[list[Node]]:
        """Return all nodes as one region."""
        return [nodes]

    def copy_constants(self, graph: torch.fx.Graph, regions: Sequence[Region], refused: Set[Node]) -> bool:  # noqa: ARG002
        """Leave the graph as it is."""
        return False

    def lower(self, region: Region) -> list[tuple[Node, str]]:
        """Make the kernels of a region."""
        return _lower_region(region)


def _find_refusal(node: Node) -> str | None:
    if not is_known(node):
        return f"{node.target} is not known"
    value = node.meta.get("val")
    if name_of(node) == CHECK:
        return None
    for one in _list(value):
        if one is None and isinstance(value, (tuple, list)):
            continue
        if not isinstance(one, torch.Tensor):
            return f"{node.target} returns no tensor"
        if any(not isinstance(size, int) for size in one.shape):
            return "sizes vary"
        if one.device.type != "cpu" or one.layout is not torch.strided:
            return f"a tensor is on {one.device}, or sparse"
        if one.numel() > MAX_ELEMENTS:
            return f"a tensor has over {MAX_ELEMENTS} numbers"
        if one.numel() == 0 and "embedding_bag" not in str(node.target):
            return "a tensor has no numbers"
    return None


def _find_levels(graph: torch.fx.Graph, refused: dict[Node, str]) -> dict[Node, int]:
    """Return a level for each node, which no input of it exceeds. Regions have even ones, and all others odd ones.

    Operators that draw random numbers keep their order.
    """
    levels: dict[Node, int] = {}
    last_impure = -1
    for node in graph.nodes:
        least = max((levels[one] for one in node.all_input_nodes), default=-1)
        if node.op in ("placeholder", "get_attr"):
            levels[node] = -1
        elif name_of(node) == "getitem" and node.args[0] in refused:
            refused[node] = "it is of an operator in no region"
            levels[node] = least
        elif node.op == "call_function" and node not in refused:
            levels[node] = max(least + least % 2, 0)
        else:
            if _is_impure(node):
                least = max(least, last_impure)
            levels[node] = least if least % 2 else least + 1
            if _is_impure(node):
                last_impure = levels[node]
    for node in reversed(graph.nodes):
        if COPIED in node.meta and node not in refused:
            least = min(levels[user] for user in node.users if user.op != "output")
            levels[node] = least - least % 2
    return levels


def _is_impure(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or node.is_impure()


def _find_borders(region: Region, order: dict[Node, int]) -> None:
    """Find what a region reads, and what others read of it."""
    own = set(region.nodes)
    read = [one for node in region.nodes for one in node.all_input_nodes]
    region.inputs = sorted({one for one in read if one not in own}, key=order.__getitem__)
    region.outputs = [node for node in region.nodes if any(user not in own for user in node.users)]


def _lower_region(region: Region) -> list[tuple[Node, str]]:
    """Make the kernels of a region. Return the node that has none, and why, or nothing."""
    made, values = Lowering(), dict[Node, Value]()
    inputs = []
    for node in region.inputs:
        value: Any = node.meta.get("val")
        users = [user for user in region.nodes if node in user.all_input_nodes]
        if not _is_input(value):
            return [(user, "an input of it is no plain tensor") for user in users]
        values[node] = made.add_input(value)
        inputs.append(made.buffers[-1])
    for node in region.nodes:
        try:
            values[node] = lower(made, node, values)
        except (
            UnsupportedError,
            LookupError,
            ArithmeticError,
            AttributeError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # an argument of another kind
            return [(node, str(error))]
    outputs = []
    for node in region.outputs:
        if values[node].parts or not isinstance(node.meta["val"], torch.Tensor):
            return [(node, "it has several outputs, which another operator reads")]
        outputs.append(made.add_output(values[node], strides_of(node)))
    if len(inputs) + len(outputs) > MAX_TENSORS:
        return [(region.nodes[-1], f"the region has over {MAX_TENSORS} inputs and outputs")]
    region.code = RegionCode(inputs, outputs, made)
    return []


def _is_input(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in C_TYPES
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_neg()
        and all(isinstance(size, int) for size in value.shape)
        and value.numel() > 0
    )


def strides_of(node: Node) -> tuple[int, ...]:
    """Return the strides of an output: those of PyTorch, without gaps, as operators give them to what they compute."""
    return tuple(map(int, torch.empty_like(node.meta["val"], device="meta").stride()))


def tell_refusals(refused: dict[Node, str]) -> str:
    """Return the most common reasons why operators are in no region."""
    counts: dict[str, int] = defaultdict(int)
    for reason in refused.values():
        counts[reason] += 1
    common: Sequence[str] = sorted(counts, key=lambda reason: -counts[reason])[:3]
    return ", ".join(common)
