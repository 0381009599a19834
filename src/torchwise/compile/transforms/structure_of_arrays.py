"""Points as a structure of arrays: (x, y, z) triples that are read repeatedly are laid out as all x, all y, all z.

If each of many points meets each of many others, the coordinates lie three elements apart for Inductor's loops over
points, on a CPU. Inductor's code gathers them for each vector, element by element and again for each of the others. Or
it takes one point after the other, without vectors. Written out once with the short dimension outermost, they are read
a vector at a time. That takes 0.23 to 0.37 of the time, all in all (`docs/benchmarks/cpu.md`).

The graph is rewritten below autograd, by Inductor's own option for such passes. The computation stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.private_name import check
from torchwise.compile.uncompiled_reason import no_effect

SHORT = range(2, 9)
"""Lengths of a dimension for which an outermost layout pays. Longer ones fill a vector by themselves."""
LANES = 64
"""Minimum number of rows for which a loop over them pays with vectors."""
AGAIN = 4
"""Least reads of each element: laying it out gathers it once."""

_WHO = "structure_of_arrays"

_aten = torch.ops.aten
_VIEWS = (
    _aten.expand.default,
    _aten.permute.default,
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
)


def reads_across(operator: Any, tensor: Any, result: Any) -> bool:
    """Whether a pointwise operator reads a tensor along its rows' start, again and again: a few elements apart.

    It does not if one of the two is no strided tensor of known sizes.
    """
    if torch.Tag.pointwise not in getattr(operator, "tags", ()) or not (_is_known(tensor) and _is_known(result)):
        return False
    spread = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    length, apart = max(spread, default=(1, 1))
    elements = math.prod(size for size, _ in spread)
    return length >= LANES and apart in SHORT and result.numel() >= AGAIN * elements > 0


def lay_out(graph: torch.fx.Graph) -> int:
    """Have a graph of `aten` operators read short rows as arrays, and return how many tensors are laid out.

    Other users of such a tensor, or of a view of it, keep it as it is.
    """
    force = inductor.FORCE_STRIDES.get(_WHO)
    arrays: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        for read in node.all_input_nodes:
            if not reads_across(node.target, read.meta.get("val"), node.meta.get("val")):
                continue
            views = [read]
            while views[-1].target in _VIEWS:
                views.append(views[-1].all_input_nodes[0])
            rows = views.pop()
            if rows not in arrays and (stride := _as_arrays(rows.meta.get("val"))):
                with graph.inserting_after(rows):
                    arrays[rows] = graph.call_function(force, (rows, stride))
                    arrays[rows].meta["val"] = rows.meta["val"].new_empty_strided(rows.meta["val"].shape, stride)
            if rows in arrays:
                node.replace_input_with(read, _view_again(graph, node, views, arrays[rows]))
    return len(arrays)


@functools.cache
def graph_pass() -> Any:
    """Return the value of Inductor's option `post_grad_custom_pre_pass`: one and the same, as options are compared.

    Raises:
        UnsupportedError: this torch has no such option.
    """
    check(_WHO, (inductor.GRAPH_PASS, inductor.HASH_FILES, inductor.FORCE_STRIDES))
    base: Any = inductor.GRAPH_PASS.get(_WHO)

    class StructureOfArrays(base):  # type: ignore[misc]
        """The pass: counts the graphs that it received, and the graphs that it changed."""

        def __init__(self) -> None:
            self.received = self.changed = 0

        def __call__(self, graph: torch.fx.Graph) -> None:
            self.received += 1
            self.changed += lay_out(graph) > 0

        def uuid(self) -> Any:
            """Return this pass's part of the key of compiled code, in addition to the graph."""
            return inductor.HASH_FILES.get(_WHO)((__file__,))

        @contextlib.contextmanager
        def assert_applied(self) -> Iterator[None]:
            """Watch a first call: at least one of the newly compiled graphs must be changed, cached ones aside."""
            received, changed = self.received, self.changed
            yield
            if self.received > received and self.changed == changed:
                raise no_effect(
                    ("transforms", _WHO),
                    f"no graph reads rows of {SHORT[0]} to {SHORT[-1]} elements, {LANES} rows or more, {AGAIN} times "
                    "or more",
                )

    return StructureOfArrays()


def _is_known(tensor: Any) -> bool:
    strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_nested
    return strided and all(isinstance(size, int) for size in (*tensor.shape, *tensor.stride()))


def _as_arrays(rows: Any) -> list[int] | None:
    """Return the strides of rows with their last dimension outermost, or None if it does not lie as rows."""
    if not _is_known(rows) or rows.dim() < 2 or rows.shape[-1] not in SHORT:
        return None
    return [math.prod(rows.shape[dim + 1 : -1]) for dim in range(rows.dim() - 1)] + [math.prod(rows.shape[:-1])]


def _view_again(
    graph: torch.fx.Graph, reader: torch.fx.Node, views: list[torch.fx.Node], arrays: torch.fx.Node
) -> torch.fx.Node:
    """Copy views, the last of them first, onto another tensor, and return the tensor for the reader."""
    result = arrays
    with graph.inserting_before(reader):
        for view in reversed(views):
            result = graph.node_copy(view, lambda _, below=result: below)  # type: ignore[misc]
    return result
