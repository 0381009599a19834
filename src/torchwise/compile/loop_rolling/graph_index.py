"""A graph that Dynamo captured, as numbers: each node's operation, its inputs, and the memory it writes to in place.

Values are numbered. Node i of the computing nodes makes value i, and input k is value -1 - k.

A loop that walks along a tensor takes another part in each step, such as `x[:, t]`, by another index, so that no two
steps would be equal. But a part is a view, which computes nothing and sees later writes. So `hoist_views` takes it as
soon as its whole exists. Then it is an input of the step, as the weights of a layer are.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from torchwise._torch import dispatch, dynamo
from torchwise._torch.dispatch import TorchDispatchMode
from torchwise._torch.symbols import NUMBERS, number_expression
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

COMPUTES = ("call_function", "call_method", "call_module")


@dataclass(frozen=True)
class GraphIndex:
    """The flow of values in a graph.

    Attributes:
        module: the graph with the objects it refers to.
        nodes: the nodes that compute, in order.
        values: the values, on fake tensors.
        reads: the values that each node takes, as often as it takes them.
        writes: the storages that each node changes in place.
        results: the values that the graph returns, None where it returns None.
        fake_mode: the mode that the fake tensors belong to.
    """

    module: torch.fx.GraphModule
    nodes: tuple[Node, ...]
    values: dict[int, Any]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[frozenset[int], ...]
    results: tuple[int | None, ...]
    fake_mode: Any

    @classmethod
    def from_graph(cls, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> GraphIndex:
        """Run the graph once on fake tensors with the form of the inputs, and record its operations.

        Raises:
            UnsupportedError: the graph cannot be cut without changing its meaning, with the reason.
        """
        module = hoist_views(module)
        replay = _replay_graph(module, inputs)
        _drop_same(module.graph, replay)
        nodes = tuple(node for node in module.graph.nodes if node.op in COMPUTES)
        placeholders = module.graph.find_nodes(op="placeholder")
        numbers = {node: number for number, node in enumerate(nodes)}
        numbers |= {node: -1 - place for place, node in enumerate(placeholders)}
        results = _results(module, numbers)
        return cls(
            module=module,
            nodes=nodes,
            values={number: replay.env[node] for node, number in numbers.items()},
            reads=tuple(tuple(numbers[read] for read in _arguments(node) if read in numbers) for node in nodes),
            writes=tuple(frozenset(map(_storage, replay.written[node])) for node in nodes),
            results=results,
            fake_mode=replay.fake_mode,
        )

    @cached_property
    def labels(self) -> tuple[Any, ...]:
        """Each node's operation and the form of its result, without the values that it reads."""
        return tuple(
            (node.op, node.target, _form(node), tuple(map(_kind, pytree.tensors(self.values[number]))))
            for number, node in enumerate(self.nodes)
        )

    @cached_property
    def last_use(self) -> dict[int, int]:
        """The number of the node that reads a value last, or the count of nodes for a returned value."""
        last = {read: number for number, reads in enumerate(self.reads) for read in reads}
        return last | dict.fromkeys((r for r in self.results if r is not None), len(self.nodes))

    def kind(self, value: int) -> Any:
        """Return all that compiled code depends on in a value, or None for one that cannot cross a cut.

        Tensors cross, and numbers that are computed from sizes of the inputs.
        """
        found = self.values[value]
        if isinstance(found, NUMBERS):
            return type(found), str(number_expression(found))
        return _kind(found) if isinstance(found, torch.Tensor) and found.layout is torch.strided else None

    def storages(self, value: int) -> frozenset[int]:
        """Return the storages that hold a value."""
        return frozenset(map(_storage, pytree.tensors(self.values[value])))

    def input_values(self, start: int, stop: int) -> list[int]:
        """List the values that nodes from `start` up to `stop` read and do not make, in order of first use."""
        return list(dict.fromkeys(r for reads in self.reads[start:stop] for r in reads if not start <= r < stop))

    def output_values(self, start: int, stop: int) -> list[int]:
        """List the values made from `start` up to `stop` that are used after it."""
        return [value for value in range(start, stop) if self.last_use.get(value, -1) >= stop]

    def may_cut(self, cuts: Sequence[int]) -> bool:
        """Whether writes in place stay right with cuts before these nodes.

        Written memory must be used between two cuts only. Or it must be allocated and written to there, and only read
        later.
        """

        def is_split(numbers: list[int]) -> bool:
            return len({bisect_right(cuts, number) for number in numbers}) > 1

        return not any(
            is_split(touched) and (not made_here or is_split([touched[0], *written]))
            for made_here, touched, written in self._written
        )

    @cached_property
    def _written(self) -> list[tuple[bool, list[int], list[int]]]:
        """List for each storage that is written to: whether the graph makes it, which nodes touch it, which write."""
        input_storages = {storage for value in self.values if value < 0 for storage in self.storages(value)}
        touched: dict[int, list[int]] = {}
        for number, reads in enumerate(self.reads):
            for storage in frozenset().union(*(self.storages(value) for value in (number, *reads))):
                touched.setdefault(storage, []).append(number)
        return [
            (
                storage not in input_storages,
                touched.get(storage, []),
                [n for n, w in enumerate(self.writes) if storage in w],
            )
            for storage in frozenset().union(*self.writes)
        ]


class _Replay(torch.fx.Interpreter):
    """Runs a graph on fake tensors, and notes the tensors that each node writes to."""

    def __init__(self, module: torch.fx.GraphModule, fake_mode: Any) -> None:
        # Nothing is freed, neither here nor in `written`. A freed storage would give its address to another.
        super().__init__(module, garbage_collect_values=False)
        self.fake_mode = fake_mode
        self.written: dict[Node, list[torch.Tensor]] = {}

    def run_node(self, n: Node) -> Any:
        grad = torch.is_grad_enabled()
        if dispatch.enters_autocast(n.target):  # refused before it is run: nothing would leave it again
            raise _changes_what_follows(n)
        with self.fake_mode, _Writes() as watch:
            result = super().run_node(n)
        self.written[n] = watch.written
        # Sizes are numbers, or several of them.
        found = result if isinstance(result, tuple) else (result,)
        are_numbers = bool(found) and all(isinstance(v, torch.SymInt) or type(v) is int for v in found)
        silent = n.op in COMPUTES and not watch.written and not pytree.tensors(result) and not are_numbers
        if silent and not (dispatch.sets_grad_mode(n.target) and torch.is_grad_enabled() == grad):
            raise _changes_what_follows(n)
        return result


def _drop_same(graph: torch.fx.Graph, replay: _Replay) -> None:
    """Have others read a tensor itself where an operator returns it as it is, such as `x.to(x.device)`.

    As a value of its own it would be a view of an input, which no part may return.
    """
    for node in list(graph.nodes):
        source = node.args[0] if node.op in COMPUTES and node.args else None
        if not isinstance(source, Node) or replay.written[node] or not isinstance(replay.env[node], torch.Tensor):
            continue
        if replay.env[node] is replay.env[source]:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _changes_what_follows(node: Node) -> UnsupportedError:
    called = getattr(node.target, "__name__", node.target)
    return UnsupportedError(f"{called} in the graph changes how PyTorch computes the following operators")


class _Writes(TorchDispatchMode):
    """Takes note of the storages that operators write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:
            raise UnsupportedError(f"{func} changes the shape or strides of a tensor in place")
        self.written += [one for name, value in list_written(func, args, kwargs) for one in pytree.tensors(value)]
        return func(*args, **kwargs)


def list_written(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the arguments that an operator writes to, by their names. Batch norm counts in inference, too."""
    given = dict(zip((one.name for one in operator._schema.arguments), args, strict=False)) | dict(kwargs)
    written = [one.name for one in operator._schema.arguments if one.alias_info and one.alias_info.is_write]
    return [(name, given[name]) for name in (*written, *RUNNING) if name in given]


RUNNING = ("running_mean", "running_var")
"""Batch norm writes to these without saying so in its schema."""


def _replay_graph(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Replay:
    if not all(isinstance(value, (torch.Tensor, *NUMBERS)) for value in inputs) or not pytree.tensors(inputs):
        raise UnsupportedError("the graph has inputs other than tensors and sizes, or no tensors")
    replay = _Replay(module, dynamo.DETECT_FAKE_MODE.get()(inputs))
    grad = torch.is_grad_enabled()
    try:
        fakes = (v if isinstance(v, NUMBERS) else dispatch.make_fake(v, replay.fake_mode) for v in inputs)
        replay.run(*fakes, enable_io_processing=False)
    except Exception as error:  # rolling is optional: a graph that cannot be watched is compiled as it is
        message = str(error).partition("\n")[0]  # the interpreter adds where it stood
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(message) from None
        raise UnsupportedError(
            f"running the graph on fake tensors failed with {type(error).__name__}: {message}"
        ) from error
    finally:
        torch.set_grad_enabled(grad)
    return replay


def _results(module: torch.fx.GraphModule, numbers: dict[Node, int]) -> tuple[int | None, ...]:
    returned: Any = module.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(node is None or node in numbers for node in returned):
        raise UnsupportedError("the graph returns values that it does not compute")
    return tuple(None if node is None else numbers[node] for node in returned)


def _arguments(node: Node) -> Iterator[Node]:
    found: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), found.append)
    yield from found


def _form(node: Node) -> str:
    """Return a node's arguments as text, a mark for each value it reads, and constants by their name."""
    return repr(torch.fx.map_arg((node.args, node.kwargs), lambda n: _Mark(n.target if n.op == "get_attr" else "")))


class _Mark(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{self}>"


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    form = (type(tensor), repr(tuple(tensor.shape)), repr(strides), tensor.dtype, tensor.device, tensor.layout)
    return (*form, tensor.requires_grad, tensor.is_conj(), tensor.is_neg())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


_FUNCTIONS = (operator.getitem, torch.select, torch.narrow)
_METHODS = ("select", "narrow")


def hoist_views(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the same graph with each part taken right after its whole, and without counts of usage.

    A view of the whole, such as `x[:, None]`, is the same in each step. It stays in its place, as a step that writes to
    its memory has both then.
    """
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in [node for node in graph.nodes if dispatch.logs_usage(node.target)]:
        graph.erase_node(node)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last: dict[Node, Node] = {}  # maps a whole to the node after which its next part is taken
    for node in [node for node in graph.nodes if _takes_part(node)]:
        whole = node.args[0]
        before = last.get(whole) or (inputs[-1] if whole.op == "placeholder" else whole)
        before.append(node)
        last[whole] = node
    return torch.fx.GraphModule(module, graph)


def _takes_part(node: Node) -> bool:
    known = node.target in (_FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else ())
    if not known or node.kwargs or not isinstance(node.args[0], Node) or not all(map(is_fixed, node.args[1:])):
        return False
    return node.target is not operator.getitem or not is_whole(node.args[1])


def is_whole(index: Any) -> bool:
    """Whether an index takes everything, with further dimensions at most."""
    if isinstance(index, tuple):
        return all(map(is_whole, index))
    return index is None or index is Ellipsis or index == slice(None)


def is_fixed(index: Any) -> bool:
    """Whether an index is made of whole numbers, ranges and the like, for which PyTorch gives a view."""
    if isinstance(index, tuple):
        return all(map(is_fixed, index))
    if isinstance(index, slice):
        return all(map(is_fixed, (index.start, index.stop, index.step)))
    return index is None or index is Ellipsis or type(index) is int
