"""Take parts of tensors before work on single numbers rather than after it.

`torch.exp(x)[:, t]` computes all steps before a loop that reads them one by one. `torch.exp(x[:, t])` is computed in
the step that reads it.
"""

from __future__ import annotations

from typing import Any

import torch

from torchwise._torch.dispatch import OpOverload
from torchwise.compile.programs.gpu.labels import POINTWISE
from torchwise.compile.programs.lowering import name_of, shape_of

Node = torch.fx.Node
SELECT = torch.ops.aten.select.int
MAX_DEPTH = 12
"""Operators through which a part is taken."""


def take_parts_first(graph: torch.fx.Graph, origins: dict[Node, Node]) -> None:
    """Replace parts of computed tensors by computations on parts.

    Args:
        graph: of a region, changed in place.
        origins: for each node the one that it was made of, kept up to date.
    """
    for node in list(graph.nodes):
        if name_of(node) == "unbind" and not _is_given(node.args[0]):
            _replace_unbind(graph, node, origins)
    for node in list(graph.nodes):
        if node.target is SELECT and not _is_given(node.args[0]):
            found = _Part(graph, node, origins).take(node.args[0], int(node.args[1]), int(node.args[2]), MAX_DEPTH)
            if found is not None:
                node.replace_all_uses_with(found)
    _drop_unused(graph)


def _is_given(node: Any) -> bool:
    return bool(node.op == "placeholder")


def _replace_unbind(graph: torch.fx.Graph, node: Node, origins: dict[Node, Node]) -> None:
    dim = int(node.args[1]) if len(node.args) > 1 else int(node.kwargs.get("dim", 0))  # type: ignore[arg-type]
    for user in list(node.users):
        with graph.inserting_before(user):
            made = graph.call_function(SELECT, (node.args[0], dim, user.args[1]))
        made.meta["val"], origins[made] = user.meta["val"], origins[node]
        user.replace_all_uses_with(made)


class _Part:
    """Computes one part of a tensor of parts.

    Args:
        graph: changed in place.
        before: the node that takes the part.
        origins: for each node the one that it was made of, kept up to date.
    """

    def __init__(self, graph: torch.fx.Graph, before: Node, origins: dict[Node, Node]) -> None:
        self._graph, self._before, self._origins = graph, before, origins
        self._known: dict[tuple[Node, int, int], Node | None] = {}

    def take(self, source: Node, dim: int, index: int, depth: int) -> Node | None:
        """Return a part of a tensor, computed of parts, or None if that is not the same or saves nothing."""
        dim %= len(shape_of(source))
        key = source, dim, index % shape_of(source)[dim]
        if key not in self._known:
            self._known[key] = self._compute(*key, depth)
        return self._known[key]

    def _compute(self, source: Node, dim: int, index: int, depth: int) -> Node | None:
        rank, name, origin = len(shape_of(source)), name_of(source), self._origins[source]
        if _is_given(source):
            return self._add(SELECT, (source, dim, index), self._origins[self._before])
        if depth == 0:
            return None
        inner: Any = source.args[0] if source.args else None
        if name == "unsqueeze":
            added = int(source.args[1]) % rank  # type: ignore[arg-type]
            if added == dim:
                return source.all_input_nodes[0]
            part = self.take(inner, dim - (dim > added), index, depth - 1)
            return None if part is None else self._add(source.target, (part, added - (added > dim)), origin)
        if name == "permute":
            order = [int(one) % rank for one in source.args[1]]  # type: ignore[union-attr, arg-type]
            part = self.take(inner, order[dim], index, depth - 1)
            left = [one - (one > order[dim]) for place, one in enumerate(order) if place != dim]
            return None if part is None else self._add(source.target, (part, left), origin)
        if name not in POINTWISE or name == "copy_to_strides":
            return None
        taken: dict[Node, Node] = {}
        for one in source.all_input_nodes:
            own = dim - (rank - len(shape_of(one)))
            part = one if own < 0 else self.take(one, own, index if shape_of(one)[own] > 1 else 0, depth - 1)
            if part is None:
                return None
            taken[one] = part
        args, kwargs = torch.fx.node.map_arg((source.args, source.kwargs), taken.__getitem__)
        return self._add(source.target, args, origin, kwargs)

    def _add(self, target: Any, args: tuple[Any, ...], origin: Node, kwargs: dict[str, Any] | None = None) -> Node:
        """Return a new node, with its tensor."""
        assert isinstance(target, OpOverload)
        with self._graph.inserting_before(self._before):
            made = self._graph.call_function(target, args, kwargs or {})
        with torch.device("meta"):
            given, named = torch.fx.node.map_arg((made.args, made.kwargs), lambda one: _on_meta(one.meta["val"]))
            made.meta["val"] = target(*given, **{**named, **({"device": "meta"} if "device" in named else {})})
        self._origins[made] = origin
        return made


def _on_meta(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _drop_unused(graph: torch.fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
