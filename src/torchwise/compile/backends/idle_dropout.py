"""Take dropout out of a graph of Dynamo where it is off, as it then returns its input itself.

In a graph its answer has memory of its own. So a write to the answer would not reach the input, and nothing would tell
that both are one tensor.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchwise._torch.pytree import tree_map_only
from torchwise.compile.signature import is_strided
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
NAMES = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_dropout", "feature_alpha_dropout"),
}
FUNCTIONS = {
    getattr(place, name)
    for place in (torch, torch.nn.functional, torch.ops.aten)
    for name in NAMES
    if hasattr(place, name)
}
"""PyTorch's own. An operator of the same name from another library may do anything."""
VALUE = "example_value"


def take_out_idle_dropout(graph: torch.fx.GraphModule) -> None:
    """Put the input of each dropout that is off in the place of its answer.

    Args:
        graph: as Dynamo captured it, changed in place. It computes the same.

    Raises:
        UnsupportedError: the memory of what is computed from an answer is not known.
    """
    idle = [one for one in graph.graph.nodes if _is_idle(one)]
    for node in idle:
        source = node.args[0] if node.args else node.kwargs["input"]
        given, answer = source.meta.get(VALUE), node.meta.get(VALUE)
        if not all(isinstance(one, torch.Tensor) and is_strided(one) for one in (given, answer)):
            raise UnsupportedError(f"it has dropout of something other than a dense tensor ({source})")
        if given.stride() != answer.stride():
            raise UnsupportedError(f"dropout that is off returns a tensor with gaps in its memory ({source})")
        _move(graph, given, answer)
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
    if idle:
        graph.recompile()


def _is_idle(node: Node) -> bool:
    """Whether a node is dropout that returns its input."""
    if node.op != "call_function" or getattr(node.target, "overloadpacket", node.target) not in FUNCTIONS:
        return False
    rate = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    is_on = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", node.kwargs.get("train", True))
    return is_on is False or (isinstance(rate, (int, float)) and rate == 0)


def _move(graph: torch.fx.GraphModule, given: torch.Tensor, answer: torch.Tensor) -> None:
    """Have all values in the memory of an answer lie in that of what dropout was given."""
    memory = StorageWeakRef(answer.untyped_storage())

    def move(value: torch.Tensor) -> torch.Tensor:
        if not is_strided(value) or StorageWeakRef(value.untyped_storage()) != memory:
            return value
        if value.dtype is not given.dtype:
            raise UnsupportedError("an answer of dropout that is off is seen as another type")
        offset = value.storage_offset() - answer.storage_offset() + given.storage_offset()
        return given.as_strided(value.shape, value.stride(), offset)

    for node in graph.graph.nodes:
        if VALUE in node.meta:
            node.meta[VALUE] = tree_map_only(torch.Tensor, move, node.meta[VALUE])
