"""Prepare a captured graph for a worker, and refuse graphs that cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from torchwise._torch import dispatch
from torchwise.errors import UnsupportedError
from torchwise.workload import Example, Workload

_OF_PYTHON_AND_TORCH = ("builtins", "math", "_operator", "torch")


class Graph:
    """A captured graph as a callable that is pickled as its source code.

    Unpickling a `GraphModule` traces it again. Nodes without tensor inputs would run once during that trace and vanish
    from the graph, such as random tensors and switches of the grad mode. Weights are inputs.

    Attributes:
        code: Python code of a function `forward`.
        requires_grad: whether each input requires gradients. Shapes do not show it, but it distinguishes graphs.
    """

    def __init__(self, code: str, names: dict[str, Any], requires_grad: tuple[bool, ...]) -> None:
        self.code = code
        self.requires_grad = requires_grad
        self._names = names
        namespace = dict(names)
        exec(compile(code, "<captured graph>", "exec"), namespace)
        self._forward = namespace["forward"]

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        return self._forward(None, *inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.code, self._names, self.requires_grad)


class CastGraph(Graph):
    """A captured graph under its surrounding autocast, such as ("cpu", "bfloat16"), which a worker lacks.

    The autocast is a part of the graph's identity.
    """

    def __init__(
        self, code: str, names: dict[str, Any], requires_grad: tuple[bool, ...], autocast: tuple[str, str]
    ) -> None:
        super().__init__(code, names, requires_grad)
        self.autocast = autocast

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph under its autocast."""
        device, dtype = self.autocast
        with torch.autocast(device, getattr(torch, dtype)):
            return super().__call__(*inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return CastGraph, (self.code, self._names, self.requires_grad, self.autocast)


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph that Dynamo captured, with the inputs for its measurement.

    Attributes:
        inputs: the inputs from Dynamo, with symbols for dynamic sizes.
        graph: the graph in the form for workers, with its `example`.
        mode: "training" if gradients are enabled and an input requires them, or else "inference".
        dynamic: whether it serves many sizes.
    """

    module: torch.fx.GraphModule
    inputs: Sequence[Any]
    graph: Graph
    example: Example
    device: str
    mode: str
    dynamic: bool

    @classmethod
    def from_graph(cls, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Captured:
        """Inspect a graph and its inputs from Dynamo.

        Raises:
            UnsupportedError: a worker could not run this graph as it would run here. The message says why.
        """
        for reason in _obstacles(module, inputs):
            raise UnsupportedError(reason)
        python = module.graph.python_code("self")
        requires_grad = tuple(_requires_grad(value) for value in inputs)
        device = next(value.device.type for value in inputs if isinstance(value, torch.Tensor))
        cast = _autocast_on(device)
        return cls(
            module,
            inputs,
            CastGraph(python.src, python.globals, requires_grad, cast)
            if cast
            else Graph(python.src, python.globals, requires_grad),
            Example(tuple(map(_concrete, inputs))),
            device=device,
            mode=_mode(inputs),
            dynamic=any(isinstance(value, torch.SymInt) for value in inputs),
        )

    @property
    def workload(self) -> Workload:
        """The graph with its example, as a workload for tuning."""
        return Workload(self.graph, (self.example,), name="graph")


def _obstacles(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[str]:
    """Yield the reasons against measuring a graph in a worker."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        yield "other ranks would wait while this one tunes"
    kinds = (torch.Tensor, torch.nn.Parameter, torch.SymInt, int)
    for value in inputs:
        if type(value) not in kinds:
            yield f"an input is a {type(value).__name__}, but only plain tensors and sizes can be sent to a worker"
    devices = {str(value.device) for value in inputs if isinstance(value, torch.Tensor)}
    if len(devices) != 1 or not devices <= {"cpu", _current_device()}:
        yield f"its inputs lie on {', '.join(sorted(devices)) or 'no device'}, but must on the CPU or the current GPU"
    yield from _list_unportable_parts(module, _mode(inputs))


def _current_device() -> str:
    """Return the GPU for workers, such as "cuda:0", or "none" if this process uses none."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "none"


def _list_unportable_parts(module: torch.fx.GraphModule, mode: str) -> Iterator[str]:
    """Yield the parts of a graph that its source code does not contain, or that depend on the worker's grad mode."""
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            yield f"it holds {node.target}: another graph (control flow, checkpointing), a module or a constant tensor"
        if dispatch.enters_autocast(node.target):
            yield "it enables autocast inside, which some versions of torch do not capture again"
        if mode == "inference" and (dispatch.sets_grad_mode(node.target) or node.target == "requires_grad_"):
            yield "it switches gradients on or off inside"
    for name, value in module.graph.python_code("self").globals.items():
        owner = str(getattr(value, "__module__", "builtins") or "builtins")
        if not isinstance(value, (ModuleType, float)) and owner not in _OF_PYTHON_AND_TORCH:
            yield f"it calls {name}, which only this process has"


def _mode(inputs: Sequence[Any]) -> str:
    return "training" if torch.is_grad_enabled() and any(map(_requires_grad, inputs)) else "inference"


def _autocast_on(device: str) -> tuple[str, str] | None:
    """Return the active autocast of a type of device, or None."""
    if not torch.is_autocast_enabled(device):
        return None
    return device, str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _concrete(value: Any) -> Any:
    """Return an input in the form for workers: a leaf without gradient history, or a whole number."""
    if isinstance(value, torch.SymInt):
        return dispatch.size_of(value)
    if not isinstance(value, torch.Tensor):
        return value
    detached = value.detach()
    return detached.requires_grad_() if value.requires_grad else detached
