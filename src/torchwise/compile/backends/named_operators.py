"""Refuse a graph with the names of the operators that are the reason, so that a compiler can take it without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchwise.errors import UnsupportedError

ORIGIN = "from_node"
"""The key among a node's attributes of the nodes that it was made from. PyTorch may lack it."""


class OperatorError(UnsupportedError):
    """A compiler lacks operators of a graph, or would compute them otherwise.

    Args:
        message: the first reason.
        nodes: the nodes of the exported program that are a reason.

    Attributes:
        names: the nodes of the graph that was exported from which they were made. It is empty if PyTorch does not tell.
    """

    def __init__(self, message: str, nodes: Iterable[torch.fx.Node]) -> None:
        super().__init__(message)
        self.names = frozenset(name for node in nodes for name in _find_origins(node))


def _find_origins(node: torch.fx.Node) -> list[str]:
    """Return the names of the nodes of the graph that was exported which made a node, or for an input, those using it.

    No operator made an input.
    """
    if node.op == "placeholder":
        return [name for user in node.users for name in _find_origins(user)]
    sources: Any = node.meta.get(ORIGIN)
    names = list[str]()
    while sources:
        names = [str(sources[-1].name)]
        sources = sources[-1].from_node
    return names
