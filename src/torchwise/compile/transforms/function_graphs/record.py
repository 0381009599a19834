"""Record the functions that a call in eager runs, as a graph like Dynamo's. It is read, and never run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from torchwise.compile.transforms.function_graphs.nodes import VALUE
from torchwise.workload import pytree

MAX_NODES = 20_000
"""Functions of a call that are recorded: a loop repeats what it has shown."""


def record(call: Callable[[], Any]) -> Graph:
    """Return the functions that a call runs, in their order, with a tensor without data for each result."""
    recorder = _Recorder()
    with recorder:
        answer = call()
    recorder.graph.output([recorder.read(tensor) for tensor in pytree.tensors(answer)])
    return recorder.graph


class _Recorder(TorchFunctionMode):
    """Adds a node for each function that returns or sets tensors. Unknown tensors are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self._nodes: Any = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and record it."""
        result = func(*args, **(kwargs or {}))
        several = isinstance(result, (tuple, list)) and any(isinstance(one, torch.Tensor) for one in result)
        is_written = getattr(func, "__name__", "") == "__setitem__"
        if (several or is_written or isinstance(result, torch.Tensor)) and len(self.graph.nodes) < MAX_NODES:
            self._add(func, args, kwargs or {}, result)
        return result

    def _add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        read: Any = map_aggregate((tuple(args), dict(kwargs)), self.read)
        name = f"result_{len(self.graph.nodes)}"
        if getattr(func, "__name__", "") == "__get__":  # a property, such as `T`
            node = self.graph.create_node("call_method", func.__self__.__name__, read[0], read[1], name)
        else:
            node = self.graph.create_node("call_function", func, read[0], read[1], name)
        if isinstance(result, torch.Tensor):
            self._keep(result, node)
            return
        for place, one in enumerate(result or ()):
            if isinstance(one, torch.Tensor):
                self._keep(one, self.graph.call_function(operator.getitem, (node, place)))

    def read(self, given: Any) -> Any:
        """Return the node of a tensor, and anything else as it is."""
        if not isinstance(given, torch.Tensor):
            return given
        if given not in self._nodes:
            self._keep(given, self.graph.placeholder(f"input_{len(self.graph.nodes)}"))
        return self._nodes[given]

    def _keep(self, tensor: torch.Tensor, node: Node) -> None:
        if tensor.layout is torch.strided and not tensor.is_nested:
            value = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            is_parameter = type(tensor) is torch.nn.Parameter
            node.meta[VALUE] = torch.nn.Parameter(value, requires_grad=False) if is_parameter else value
        self._nodes[tensor] = node
