"""Parts of a graph of Dynamo: consecutive operators as a graph of their own, and the graph that calls such parts.

A part only computes new tensors. So views of its inputs, further views of an output, and sizes are made again outside
of it, from what it was given and what it answers. There they cost next to nothing, and share memory as in eager.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchwise._torch.symbols import NUMBERS, number_expression, number_hint, varies
from torchwise.compile.backends.pure_graph import find_strides
from torchwise.compile.signature import is_strided
from torchwise.compile.transforms.function_graphs.nodes import changes_form
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
CALLS = ("call_function", "call_method")
VIEWS = {
    *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "expand"),
    *("expand_as", "broadcast_to", "permute", "transpose", "t", "swapaxes", "swapdims", "movedim", "moveaxis"),
    *("narrow", "select", "getitem", "split", "chunk", "tensor_split", "unbind", "diagonal", "unfold", "detach"),
    *("contiguous", "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool", "dropout"),
}
"""Functions and methods that may return a part of their first argument's memory, and write nothing."""
READS_CONTENTS = ("item", "tolist", "_local_scalar_dense")
"""Functions and methods whose numbers depend on the contents of a tensor, and not on its sizes alone."""
Compiled = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive operators as a graph of their own.

    Attributes:
        graph: takes the values of `given`, and returns those of `outputs`.
        given: the nodes of the whole graph outside the part that it reads, without attributes.
        outputs: the nodes of the part whose values are used outside of it, and which it computes.
        again: the nodes of the part whose values are used outside of it, and which are made there again.
    """

    graph: torch.fx.GraphModule
    given: tuple[Node, ...]
    outputs: tuple[Node, ...]
    again: tuple[Node, ...]


def list_units(graph: torch.fx.GraphModule) -> list[tuple[Node, ...]]:
    """List the operators of a graph in their order, each with the nodes that take its answer apart.

    Raises:
        UnsupportedError: a node changes the state of the process, such as autocast, and not only tensors. Or it changes
            the shape of a tensor in place, or reads a number from one.
    """
    units, placed = list[tuple[Node, ...]](), set[Node]()
    for node in graph.graph.nodes:
        if node.op not in CALLS or node in placed:
            if node.op == "call_module":
                raise UnsupportedError(f"it calls a module as a whole ({node.target})")
            continue
        if not (_is_known(_value_of(node)) or node.target is operator.setitem):
            raise UnsupportedError(f"it does more than compute tensors ({_name_of(node)})")
        if changes_form(node):  # the graph records only the last form of a tensor, for all that was done before
            raise UnsupportedError(f"it changes the shape or strides of a tensor in place ({_name_of(node)})")
        if _name_of(node) in READS_CONTENTS:  # it cannot be computed again once the tensor is written to
            raise UnsupportedError(f"it reads a number from a tensor ({_name_of(node)})")
        unit = (node, *_list_items(node))
        placed.update(unit)
        units.append(unit)
    return units


def count_operators(nodes: Iterable[Node]) -> int:
    """Count the operators that compute something: no views, no numbers, and no items of answers."""
    return sum(
        not (_is_view(node) or _is_item(node) or _is_number(_value_of(node))) for node in nodes if node.op in CALLS
    )


def make_part(graph: torch.fx.GraphModule, nodes: Sequence[Node]) -> Part:
    """Return consecutive operators of a graph as a graph of their own, which shares the weights."""
    given = _list_given(nodes)
    outputs, again = _choose_outputs(nodes, given)
    computed = _list_numbers(graph, given)
    given = _list_given([*computed, *nodes])
    given += _list_sizes(graph, given)
    made, values = torch.fx.Graph(), dict[Node, Node]()
    for node in given:
        if node.op != "get_attr":
            values[node] = made.placeholder(node.name)
            values[node].meta["example_value"] = _value_of(node)
    for node in given:
        if node.op == "get_attr":
            values[node] = made.node_copy(node)
    for node in (*computed, *nodes):
        values[node] = made.node_copy(node, values.__getitem__)
    made.output(tuple(values[node] for node in outputs))
    inputs = tuple(node for node in given if node.op != "get_attr")
    return Part(torch.fx.GraphModule(graph, made), inputs, tuple(outputs), tuple(again))


def make_examples(part: Part, known: dict[Node, Any]) -> list[Any]:
    """Return inputs for a part: those that are known, and zeros in place of those that operators compute."""
    return [known[node] if node in known else _make_example(_value_of(node)) for node in part.given]


def join_parts(graph: torch.fx.GraphModule, pieces: Sequence[tuple[Part, Compiled] | Node]) -> torch.fx.GraphModule:
    """Return the whole graph, made of compiled parts and of single operators as they are, in this order."""
    made, values = torch.fx.Graph(), dict[Node, Node]()
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            values[node] = made.node_copy(node)
    for piece in pieces:
        if isinstance(piece, Node):
            values[piece] = made.node_copy(piece, values.__getitem__)
            continue
        part, compiled = piece
        answers = made.call_function(_or_as_it_is(part, compiled), tuple(values[node] for node in part.given))
        for place, node in enumerate(part.outputs):
            values[node] = made.call_function(operator.getitem, (answers, place))
        for node in part.again:
            values[node] = made.node_copy(node, values.__getitem__)
    made.node_copy(graph.graph.output_node(), values.__getitem__)
    return torch.fx.GraphModule(graph, made)


def _or_as_it_is(part: Part, compiled: Compiled) -> Compiled:
    """Return the code of a part, in whose place its own operators answer calls that the code is not for.

    The whole model must not answer them, as operators before the part may have written to its inputs by then.
    """

    def answer(*given: Any) -> Sequence[Any]:
        try:
            return compiled(*given)
        except UnsupportedError:  # it looks at its inputs before it computes
            found: Sequence[Any] = part.graph.forward(*given)
            return found

    return answer


def describe_kind(node: Node) -> tuple[Any, ...]:
    """Return the facts that decide whether a compiler has an operator: name, constants, and dtypes of its inputs."""
    values = [_value_of(one) for one in node.all_input_nodes]
    dtypes = [(one.dtype, one.dim()) if isinstance(one, torch.Tensor) else type(one) for one in values]
    constants = torch.fx.map_arg((node.args, node.kwargs), lambda _: None)
    return node.op, node.target, tuple(dtypes), repr(constants)


def _list_given(nodes: Sequence[Node]) -> list[Node]:
    """List the nodes that others read and that are not among them."""
    inside = set(nodes)
    return list(dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside))


def _list_numbers(graph: torch.fx.GraphModule, given: Iterable[Node]) -> list[Node]:
    """List the nodes that compute given numbers from sizes, in their order. A part computes them again by itself."""
    found, left = set[Node](), list(given)
    while left:
        node = left.pop()
        if node.op in CALLS and _is_number(_value_of(node)) and node not in found:
            found.add(node)
            left += node.all_input_nodes
    return [node for node in graph.graph.nodes if node in found]


def _list_sizes(graph: torch.fx.GraphModule, given: Sequence[Node]) -> list[Node]:
    """List further inputs of the graph from which a part can take the sizes that it is given as numbers."""
    tensors = [node for node in graph.graph.nodes if node.op == "placeholder" and node not in given]
    known, found = {size for node in given for size in _list_varying(node)}, list[Node]()
    for number in (_value_of(node) for node in given):
        if varies(number) and number_expression(number) not in known:
            found += next(([one] for one in tensors if number_expression(number) in _list_varying(one)), [])
    return list(dict.fromkeys(found))


def _list_varying(node: Node) -> list[Any]:
    value = _value_of(node)
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return [number_expression(size) for size in sizes if varies(size)]


def _choose_outputs(nodes: Sequence[Node], given: Iterable[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes that a part must answer, and those that are made again outside of it, each in their order."""
    inside, memory_outside = set(nodes), {_memory_of(node) for node in given}
    read_around = {_memory_of(one.all_input_nodes[0]) for one in nodes[0].graph.nodes if _reads_around(one)}
    wanted = {node for node in nodes if any(user not in inside for user in node.users)}
    while True:
        memory = Counter(map(_memory_of, wanted))
        shared = {one for one, times in memory.items() if one in memory_outside | read_around or times > 1} - {None}
        again = {node for node in wanted if _is_made_again(node, shared)}
        more = {one for node in again for one in node.all_input_nodes if one in inside} - wanted
        if not more:
            return [node for node in nodes if node in wanted - again], [node for node in nodes if node in again]
        wanted |= more


def _is_made_again(node: Node, shared: set[StorageWeakRef | None]) -> bool:
    value = _value_of(node)
    if not isinstance(value, torch.Tensor):
        if not (_is_number(value) or _is_view(node)):
            raise UnsupportedError(f"it passes an answer of {_name_of(node)} on that is no tensor")
        return True
    return _is_view(node) and (_memory_of(node) in shared or not _can_be_answered(value))


def _reads_around(node: Node) -> bool:
    """Whether a node may read memory around a tensor, which the answer of a compiler does not have."""
    return "as_strided" in _name_of(node) and bool(node.all_input_nodes)


def _can_be_answered(value: torch.Tensor) -> bool:
    try:
        find_strides(value)
    except UnsupportedError:
        return False
    return True


def _is_view(node: Node) -> bool:
    """Whether a node only shows a part of another's memory."""
    source = node.args[0] if node.args else None
    if _name_of(node) not in VIEWS or not isinstance(source, Node):
        return False
    if _is_item(node):
        return _is_view(source)
    memory = {_memory_of(source)} - {None}
    return bool(memory) and {_memory_of(one) for one in (node, *_list_items(node))} - {None} == memory


def _is_item(node: Node) -> bool:
    """Whether a node takes one of several tensors from an answer."""
    return node.target is operator.getitem and isinstance(_value_of(node.all_input_nodes[0]), (tuple, list))


def _list_items(node: Node) -> Iterator[Node]:
    """Yield the nodes that take the answer of an operator with several tensors apart."""
    if isinstance(_value_of(node), (tuple, list)):
        for user in node.users:
            if user.target is operator.getitem and user.args[0] is node:
                yield user
                yield from _list_items(user)


def _is_known(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_known, value))
    return isinstance(value, torch.Tensor) or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.Size, *NUMBERS))


def _value_of(node: Node) -> Any:
    return node.meta.get("example_value")


def _name_of(node: Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _memory_of(node: Node) -> StorageWeakRef | None:
    value = _value_of(node)
    return StorageWeakRef(value.untyped_storage()) if isinstance(value, torch.Tensor) and is_strided(value) else None


def _make_example(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (int, float)) else number_hint(value)
    sizes, strides = ([*map(number_hint, given)] for given in (value.shape, value.stride()))
    if None in sizes or None in strides:
        raise UnsupportedError("one of its sizes depends on the contents of a tensor")
    ends: list[Any] = [size and (size - 1) * (stride or 0) for size, stride in zip(sizes, strides, strict=True)]
    memory = torch.zeros(1 + sum(ends), dtype=value.dtype, device=value.device)
    return memory.as_strided(sizes, strides)  # type: ignore[arg-type]
