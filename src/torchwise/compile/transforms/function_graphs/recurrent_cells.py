"""Cells of recurrent nets become their two products and the work behind these.

PyTorch has operators of its own for `nn.GRUCell`, `nn.LSTMCell` and `nn.RNNCell`. As such, a cell hides its products
from the rewrites of products, and its gates from the kernels around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from torchwise.compile.transforms.function_graphs.nodes import VALUE, add_call, name_of, value_of, writes

CELLS = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
RNNS = ("gru", "lstm", "rnn_tanh", "rnn_relu")
"""All steps of all layers, which `compiled_rnn` makes plain operators of."""


def expand_cells(graph: Graph, is_wanted: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    """Put plain operators in place of cells.

    Args:
        graph: it.
        is_wanted: whether a cell may change, from the values of its memory (batch, hidden) and its weight of that,
            (gates * hidden, hidden).
    """
    for node in list(graph.nodes):
        if name_of(node) not in CELLS or node.kwargs or len(node.args) != 6 or writes(node):
            continue
        x, state, *weights = node.args
        memory: Any = state if name_of(node) != "lstm_cell" else state[0]
        given = [value for one in (x, memory, *weights[:2]) if (value := value_of(one)) is not None]
        answers = [value for one in (node, *node.users) if (value := value_of(one)) is not None]
        is_plain = len(given) == 4 and all(one.dim() == 2 for one in given)
        is_cast = len({one.dtype for one in (*given, *answers)}) != 1  # by autocast
        # With a gradient PyTorch's own keeps less in memory.
        if is_plain and not is_cast and not any(one.requires_grad for one in answers) and is_wanted(given[1], given[3]):
            _expand(graph, node)


def has_rnn_of(graph: Graph, is_wanted: Callable[[torch.Tensor, torch.Tensor], bool]) -> bool:
    """Return whether a cell of an RNN is wanted, as in `expand_cells`. That of the first layer stands for all."""
    for node in graph.nodes:
        if name_of(node) not in RNNS or len(node.args) < 3 or not isinstance(node.args[2], (list, tuple)):
            continue  # also of a packed sequence, which `compiled_rnn` refuses
        state, weights = node.args[1:3]
        memory = value_of(state if isinstance(state, Node) else state[0])
        weight = value_of(weights[1]) if len(weights) > 1 else None
        if memory is not None and weight is not None and memory.dim() == 3 and is_wanted(memory[0], weight):
            return True
    return False


def _expand(graph: Graph, node: Node) -> None:
    name, (x, state, *weights) = name_of(node), node.args
    is_lstm = name == "lstm_cell"
    if is_lstm and any(name_of(user) != "getitem" or user.args[1] not in (0, 1) for user in node.users):
        return
    given: Any = state if is_lstm else (state,)
    with graph.inserting_before(node):
        call = functools.partial(add_call, graph)
        from_input, from_memory = (
            _add_linear(graph, *one) for one in ((x, weights[0], weights[2]), (given[0], weights[1], weights[3]))
        )
        dtype, size = _value(given[0]).dtype, _value(given[0]).shape[1]
        if dtype.itemsize < 4:  # as PyTorch's own kernels compute
            from_input, from_memory = call("float", from_input), call("float", from_memory)
            given = [call("float", one) for one in given]

        def gate(place: int) -> tuple[Node, Node]:
            return tuple(call("narrow", one, 1, place * size, size) for one in (from_input, from_memory))  # type: ignore[return-value]

        if is_lstm:
            i, f, g, o = (call("add", *gate(place)) for place in range(4))
            kept = call("mul", call("sigmoid", f), given[1])
            cell = call("add", kept, call("mul", call("sigmoid", i), call("tanh", g)))
            found = [call("mul", call("sigmoid", o), call("tanh", cell)), cell]
        elif name == "gru_cell":
            reset, update = (call("sigmoid", call("add", *gate(place))) for place in range(2))
            own, remembered = gate(2)
            new = call("tanh", call("add", own, call("mul", reset, remembered)))
            found = [call("add", new, call("mul", update, call("sub", given[0], new)))]
        else:
            found = [call("tanh" if name == "rnn_tanh_cell" else "relu", call("add", from_input, from_memory))]
        if dtype.itemsize < 4:
            found = [call("to", one, dtype) for one in found]
    for user, place in [(user, user.args[1]) for user in node.users] if is_lstm else [(node, 0)]:
        user.replace_all_uses_with(found[place])  # type: ignore[index]
        if is_lstm:
            graph.erase_node(user)
    graph.erase_node(node)


def _add_linear(graph: Graph, *given: Any) -> Node:
    node = graph.call_function(functional.linear, given)
    values: Any = torch.fx.map_arg(given, value_of)
    node.meta[VALUE] = functional.linear(*values)
    return node


def _value(node: Any) -> torch.Tensor:
    value = value_of(node)
    assert value is not None
    return value
