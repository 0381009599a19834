"""Parts of a tensor that a loop walks along, such as `x[:, t]`, taken before the loop.

Each step takes another part, by another index, so that no two steps would be equal. But a part is a view, which
computes nothing and sees later writes. So it may be taken as soon as its whole exists. Then it is an input of the step,
as the weights of a layer are.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

_FUNCTIONS = (operator.getitem, torch.select, torch.narrow)
_METHODS = ("select", "narrow")


def hoist_views(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the same graph with each part taken right after its whole."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last: dict[Node, Node] = {}  # maps a whole to the node after which its next part is taken
    for node in [node for node in graph.nodes if _is_view(node)]:
        whole = node.args[0]
        before = last.get(whole) or (inputs[-1] if whole.op == "placeholder" else whole)
        before.append(node)
        last[whole] = node
    return torch.fx.GraphModule(module, graph)


def _is_view(node: Node) -> bool:
    known = node.target in (_FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else ())
    return known and not node.kwargs and isinstance(node.args[0], Node) and all(map(_is_fixed, node.args[1:]))


def _is_fixed(index: Any) -> bool:
    """Whether an index is made of whole numbers, ranges and the like, for which PyTorch gives a view."""
    if isinstance(index, tuple):
        return all(map(_is_fixed, index))
    if isinstance(index, slice):
        return all(map(_is_fixed, (index.start, index.stop, index.step)))
    return index is None or index is Ellipsis or type(index) is int
