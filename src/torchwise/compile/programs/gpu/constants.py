"""Tensors that depend on no input, such as an identity matrix or a mask: each region computes them for itself.

A kernel has them in registers as soon as it knows where a number lies. Read from memory, all pairs of 2,048 points are
16 MB for each kernel.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from torchwise.compile.programs.gpu.expressions import BITS, COMPARISONS, LOGIC, NUMBERS
from torchwise.compile.programs.gpu.labels import CONSTANTS, MOVED
from torchwise.compile.programs.lowering import name_of
from torchwise.compile.programs.regions import COPIED, Region

Node = torch.fx.Node
CHEAP = {*BITS, *COMPARISONS, *LOGIC, *NUMBERS, *CONSTANTS, *MOVED, "arange", "where", "_to_copy", "clone", "alias"}
"""Operators that are computed again sooner than their numbers are read."""
MAX_COPIED = 16
"""Most operators of such a tensor."""


def copy_constants(graph: torch.fx.Graph, regions: Sequence[Region], refused: Set[Node]) -> bool:
    """Give each region copies of the operators of such tensors that another one computes.

    Args:
        graph: changed in place.
        regions: of it.
        refused: operators that are in no region. Tensors that they make are read from memory.

    Returns:
        Whether any region has new copies.
    """
    changed = False
    for region in regions:
        for node in region.inputs:
            chain = _list_chain(node)
            if chain is None or not refused.isdisjoint(chain):
                continue
            copies: dict[Node, Node] = {}
            with graph.inserting_before(region.nodes[0]):
                for one in chain:
                    copies[one] = graph.node_copy(one, copies.__getitem__)
                    copies[one].meta[COPIED] = True
            node.replace_all_uses_with(copies[node], set(region.nodes).__contains__)
            for one in reversed(chain):
                if not one.users:
                    graph.erase_node(one)
            changed = True
    return changed


def _list_chain(node: Node) -> list[Node] | None:
    """Return the operators of a tensor in order, or None if it depends on an input, or takes long to compute."""
    found: dict[Node, None] = {}

    def add(one: Node) -> bool:
        if one in found:
            return True
        if one.op != "call_function" or name_of(one) not in CHEAP or len(found) > MAX_COPIED:
            return False
        if not all(add(inner) for inner in one.all_input_nodes):
            return False
        found[one] = None
        return True

    return list(found) if add(node) and len(found) <= MAX_COPIED else None
