"""Find the operators of an exported program that another compiler would not compute as PyTorch does."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchwise._torch.dispatch import OpOverload, draws_numbers
from torchwise._torch.symbols import is_surely
from torchwise.compile.signature import is_strided

Node = torch.fx.Node
COPY_CONSTANT = torch.ops.aten.lift_fresh_copy.default
STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
"""Operators that write to running statistics, and the argument with which they do."""


def find_problems(
    program: torch.export.ExportedProgram,
    *,
    allows_random: bool,
    keeps_draws: bool,
    allows_complex: bool,
    is_moved: bool,
) -> Iterator[tuple[Node, str]]:
    """Yield the nodes that another compiler would not compute as PyTorch does, with the reasons.

    Args:
        program: the graph of a call, with those of its branches and regions.
        allows_random: whether PyTorch draws the random numbers (see `PureGraph.export`). It then also runs assertions
            and `as_strided`, so that these are no problems.
        keeps_draws: whether draws that nothing reads must stay (see `PureGraph.export`).
        allows_complex: whether the compiler has complex numbers.
        is_moved: whether its inputs lie in memory otherwise than those of eager.
    """
    for graph, caller in list_graphs(program):
        own = set(list_memory((node for node in graph.nodes if not _is_copied(node)), ("placeholder",), "val"))
        for node in graph.nodes:
            value, named = node.meta.get("val"), caller or node
            if isinstance(value, torch.Tensor) and value.is_complex() and not allows_complex:
                yield named, f"it computes with complex numbers ({node.target}), which the backend does not have"
            if not isinstance(node.target, OpOverload):
                continue
            if not allows_random and _reads_around(node, is_moved):
                yield named, "it takes elements by their places in memory (as_strided), which the backend does not have"
            given = list_arguments(node)
            is_random = draws_numbers(node.target, node.args, node.kwargs)
            if is_random and allows_random and keeps_draws and not _is_used(node):  # the next draw would be another
                yield (
                    named,
                    f"{node.target} draws random numbers that nothing reads, and decomposing the graph drops it",
                )
            if is_random and not allows_random:
                yield (
                    named,
                    f"{node.target} draws random numbers, and the backend would draw others: use eval() for dropout",
                )
            if any(memory_of(one.meta["val"]) in own for one in _list_written(node)):
                yield named, f"{node.target} writes to an input or a weight, and the backend only computes values"
            turned_on = given.get(STATISTICS.get(str(node.target).split(".")[1], ""))
            if turned_on is True and given.get("running_mean") is not None:
                yield named, f"{node.target} writes to its running statistics: use eval()"
            if not allows_random and "_assert_async" in str(node.target):
                yield named, f"{node.target} raises an error for some inputs, and the backend would go on"


def list_graphs(program: torch.export.ExportedProgram) -> Iterator[tuple[torch.fx.Graph, Node | None]]:
    """Yield the graph of a program, and those of its branches, loops and regions, each with the node that runs it."""
    yield program.graph, None
    for node in program.graph.find_nodes(op="get_attr"):
        inside = operator.attrgetter(str(node.target))(program.graph_module)
        modules = inside.modules() if isinstance(inside, torch.fx.GraphModule) else ()
        graphs = [one.graph for one in modules if isinstance(one, torch.fx.GraphModule)]
        yield from ((graph, user) for graph in graphs for user in node.users)


def _reads_around(node: Node, is_moved: bool) -> bool:
    """Whether a node may read elements that another compiler has elsewhere in memory, or not at all."""
    if "as_strided" not in str(node.target):
        return False
    source = node.all_input_nodes[0].meta["val"]
    is_whole = source.untyped_storage().nbytes() == source.numel() * source.dtype.itemsize
    return is_moved or not (source.is_contiguous() and is_surely(is_whole))


def list_writes(program: torch.export.ExportedProgram) -> list[list[int]]:
    """List the writes of a program in their order, each with the places of the nodes before it that it changes, too."""
    memory = [{memory_of(one) for one in _list(node.meta.get("val")) if _is_dense(one)} for node in program.graph.nodes]
    written = [
        (place, {memory_of(one.meta["val"]) for one in _list_written(node)})
        for place, node in enumerate(program.graph.nodes)
        if isinstance(node.target, OpOverload)
    ]
    return [[one for one in range(place) if memory[one] & found] for place, found in written if found]


def _list_written(node: Node) -> list[Node]:
    """List the dense tensors that an operator writes to."""
    assert isinstance(node.target, OpOverload)
    names = [one.name for one in node.target._schema.arguments if one.alias_info and one.alias_info.is_write]
    given = list_arguments(node)
    found = (one for name in names for one in _list(given.get(name)))
    return [one for one in found if isinstance(one, Node) and _is_dense(one.meta.get("val"))]


def _is_copied(node: Node) -> bool:
    """Whether a node is a constant that the program only reads to make tensors of its own, as `torch.tensor` does."""
    return bool(node.users) and all(user.target is COPY_CONSTANT for user in node.users)


def _is_used(node: Node) -> bool:
    """Whether an output of the graph depends on a node, or on a tensor that it may write to."""
    left = [node, *(node.all_input_nodes if node.target._schema.is_mutable else ())]  # type: ignore[union-attr]
    seen = set(left)
    while left:
        new = set(left.pop().users) - seen
        seen |= new
        left += new
    return any(one.op == "output" for one in seen)


def list_memory(nodes: Any, kinds: Sequence[str], key: str = "example_value") -> Iterator[StorageWeakRef]:
    """Yield the memory of the tensors of nodes of these kinds."""
    values = (node.meta.get(key) for node in nodes if node.op in kinds)
    return (memory_of(value) for value in values if _is_dense(value))


def memory_of(tensor: torch.Tensor) -> StorageWeakRef:
    """Return what is equal for tensors in the same memory."""
    return StorageWeakRef(tensor.untyped_storage())


def list_arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of an operator by their names, with the defaults of those that are not given."""
    assert isinstance(node.target, OpOverload)
    parameters = node.target._schema.arguments
    defaults = {one.name: one.default_value for one in parameters if one.has_default_value()}
    return {**defaults, **dict(zip((one.name for one in parameters), node.args, strict=False)), **node.kwargs}


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_strided(value)


def _list(argument: Any) -> Sequence[Any]:
    return argument if isinstance(argument, (tuple, list)) else (argument,)
