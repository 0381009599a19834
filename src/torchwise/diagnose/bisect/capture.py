"""The worker's side: the graphs that Dynamo captures from a call, and parts of them as workloads of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchwise._torch import aot_autograd, dispatch, dynamo
from torchwise.diagnose.bisect.job import Graphs, Part, Probe
from torchwise.records.bisection import Operation
from torchwise.trial.loading import load
from torchwise.workload import Workload, pytree
from torchwise.workload.module_state import kept_state
from torchwise.workload.workload import Example

_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in .*\n\s*(?P<code>[^\n]*)')
CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph that Dynamo passed to its backend, with the inputs of its first call on each example that reached it."""

    module: fx.GraphModule
    inputs: tuple[tuple[Any, ...], ...]

    @property
    def calls(self) -> list[fx.Node]:
        """The operations, in order."""
        return [node for node in self.module.graph.nodes if node.op in CALLS]


def list_graphs(probe: Probe, stage: Callable[[str], None]) -> Graphs:
    """Return the operations of every captured graph."""
    stage("load")
    workload = load(probe.job)
    stage("capture")
    graphs = capture(workload, training=probe.job.workload.mode == "training")
    return Graphs(tuple(tuple(map(_operation, captured.calls)) for captured in graphs))


def capture(workload: Workload, *, training: bool) -> list[Captured]:
    """Have Dynamo capture a call on each example.

    The graphs then run unchanged.
    """
    graphs: list[tuple[fx.GraphModule, dict[int, tuple[Any, ...]]]] = []
    number = 0

    def keep(module: fx.GraphModule, _examples: list[Any]) -> Callable[..., Any]:
        inputs_of: dict[int, tuple[Any, ...]] = {}
        graphs.append((module, inputs_of))

        def run(*inputs: Any) -> Any:
            if number not in inputs_of:
                inputs_of[number] = _leaves(inputs)
            return module(*inputs)

        return run

    call = torch.compile(workload.call, backend=keep)
    with torch.set_grad_enabled(training):
        for number, example in enumerate(workload.examples):  # noqa: B007 which `run` reads
            cloned = example.clone()
            torch.manual_seed(0)
            with kept_state(workload.call):
                call(*cloned.args, **cloned.kwargs)
        torch.compiler.reset()
        return [_retraceable(Captured(module, tuple(ran.values()))) for module, ran in graphs if ran]


def _retraceable(captured: Captured) -> Captured:
    """Return a graph that Dynamo captures again unchanged: with ATen operators in place of NumPy's functions.

    Dynamo does not trace into its own replacements for NumPy's functions. A part of the graph would then be split into
    other graphs than the whole.
    """
    if not any(dynamo.is_dynamos_own(node.target) for node in captured.calls):
        return captured
    with fx.traceback.preserve_node_meta():
        lowered = aot_autograd.MAKE_FX.get("bisect")(fx.Interpreter(captured.module).run)(*captured.inputs[0])
    return Captured(lowered, captured.inputs[:1])  # its sizes are constants in the graph


def extract_subgraph(captured: Captured, part: Part) -> Workload:
    """Return the kept operations as a workload.

    Its inputs are the others' outputs when the whole graph ran.
    """
    kept, runs = set(part.operations), []
    for inputs in captured.inputs:
        runs.append(_Recorder(captured.module, kept))
        torch.manual_seed(0)
        runs[-1].run(*pytree.clone(inputs))
    first, graph, input_names = runs[0], fx.Graph(), []
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.module.graph.nodes:
        if node.name in kept or _is_structure(node, first.values):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        elif node.name in first.values and node.op != "output":
            copies[node] = graph.placeholder(node.name)
            input_names.append(node.name)
    graph.output(tuple(copies[node] for node in captured.calls if _is_result(node, kept, first.returned)))
    graph.eliminate_dead_code(lambda node: node.op != "get_attr")
    examples = tuple(Example(tuple(run.values[name] for name in input_names)) for run in runs)
    return Workload(fx.GraphModule(captured.module, graph), examples)


class _Recorder(fx.Interpreter):
    """Records the values that operations outside a part pass to it, and the operations inside that return tensors."""

    def __init__(self, module: fx.GraphModule, kept: set[str]) -> None:
        super().__init__(module)
        self._kept = kept
        self.values: dict[str, Any] = {}
        self.returned: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        """Run one operation, and copy its result before a later one may write to it."""
        value = super().run_node(n)
        if n.name in self._kept:
            if pytree.tensors(value):
                self.returned.add(n.name)
        elif any(user.name in self._kept for user in n.users):
            self.values[n.name] = _leaves(value)
        return value


def _leaves(value: Any) -> Any:
    """Return a copy of a value without its autograd history. It requires gradients if the value did."""
    return pytree.map_tensors(lambda t: pytree.clone(t.detach()).requires_grad_(t.requires_grad), value)


def _is_structure(node: fx.Node, values: dict[str, Any]) -> bool:
    """Return whether a node names a nested graph, which is no value and is copied with its user."""
    return node.op == "get_attr" and isinstance(values.get(node.name), torch.nn.Module)


def _is_result(node: fx.Node, kept: set[str], returned: set[str]) -> bool:
    outside = not node.users or any(user.name not in kept for user in node.users)
    return node.name in kept and node.name in returned and outside


def _operation(node: fx.Node) -> Operation:
    operator = node.target if isinstance(node.target, str) else _name(node.target)
    arguments = [*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]
    source, line = _source(node.meta.get("stack_trace") or "")
    return Operation(node.name, operator, f"{node.name} = {operator}({', '.join(arguments)})", source, line)


def _name(function: Any) -> str:
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", str(function))
    return name if module in ("_operator", "builtins") else f"{_public(module)}{name}"


def _public(module: str) -> str:
    return "torch." if module.startswith(dispatch.C_MODULE) or module in ("", "torch") else f"{module}."


def _source(trace: str) -> tuple[str, str]:
    """Return file and line of the innermost frame, and its text."""
    frames: Iterable[re.Match[str]] = _FRAME.finditer(trace)
    last = next(reversed(list(frames)), None)
    return (f"{last['file']}:{last['line']}", last["code"].strip()) if last else ("", "")
