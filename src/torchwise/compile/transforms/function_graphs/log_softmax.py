"""The logarithm of a softmax is PyTorch's `log_softmax`.

It takes no logarithm of a share that has underflowed: where the softmax is 0, eager answers -inf, and this the finite
logarithm that a float64 has.
"""

from __future__ import annotations

from torch.fx import Graph, Node
from torch.nn import functional

from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    argument,
    is_only_for,
    list_between,
    name_of,
    replace,
    value_of,
    writes,
)


def rewrite(graph: Graph) -> int:
    """Put `log_softmax` in the place of logarithms of softmaxes, and return how often."""
    return sum(_rewrite_log(graph, node) for node in list(graph.nodes) if name_of(node) == "log")


def _rewrite_log(graph: Graph, node: Node) -> bool:
    softmax = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(softmax, Node) or name_of(softmax) != "softmax" or not is_only_for(softmax, node):
        return False
    given, answer = argument(softmax, 0, "input"), value_of(node)
    dim = argument(softmax, 1, "dim")
    if not isinstance(given, Node) or not isinstance(dim, int) or answer is None or value_of(softmax) is None:
        return False
    if writes(node) or writes(softmax) or any(map(writes, list_between(softmax, node))):
        return False
    with graph.inserting_before(node):
        # The dtype is that of the answer, however it was asked for.
        made = graph.call_function(functional.log_softmax, (given,), {"dim": dim, "dtype": answer.dtype})
    made.meta[VALUE] = answer
    replace(node, made)
    return True
