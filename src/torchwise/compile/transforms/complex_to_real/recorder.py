"""Rules are plain PyTorch on fake tensors. The operators that they call become nodes of the new graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise._torch.dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """Writes every operator that is called while it is active into a graph.

    Args:
        graph: the graph to write to.
        fake_mode: gives results their shapes, dtypes and strides without computing them.
        decompositions: the compiler's replacements for some operators, by overload.

    Attributes:
        written: the nodes that it wrote. Others were copied from the model's own graph.
    """

    def __init__(self, graph: torch.fx.Graph, fake_mode: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph
        self._fake_mode = fake_mode
        self._decompositions = decompositions
        self.written: set[torch.fx.Node] = set()
        # By identity, and kept with the tensor, so that none is freed and its identity given to another.
        self._nodes: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}

    def bind(self, node: torch.fx.Node) -> Any:
        """Let the fake tensors of a node stand for it, and return them."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
        return value

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Return the node that a fake tensor stands for."""
        return self._nodes[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Decompose the operator, or write it down."""
        kwargs = kwargs or {}
        if (decomposition := self._decompositions.get(func)) is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        with self._fake_mode:
            result = func(*args, **kwargs)
        self._write(func, args, kwargs, result)
        return result

    def _write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        args, kwargs = _pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        node = self._graph.call_function(func, args, kwargs)
        node.meta["val"] = result
        self.written.add(node)
        self.bind(node)
        if isinstance(result, list | tuple):
            for place, one in enumerate(result):
                item = self._graph.call_function(operator.getitem, (node, place))
                item.meta["val"] = one
                self.bind(item)
