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
from torchwise._torch.symbols import number_hint
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

    It does not if one of the two is no strided tensor of known sizes. Sizes that vary count as they are in the call
    for which the graph was captured: the result is right for all of them.
    """
    if torch.Tag.pointwise not in getattr(operator, "tags", ()):
        return False
    read, made = _find_layout(tensor), _find_layout(result)
    if read is None or made is None:
        return False
    spread = [(size, stride) for size, stride in read if stride]
    length, apart = max(spread, default=(1, 1))
    elements = math.prod(size for size, _ in spread)
    return length >= LANES and apart in SHORT and math.prod(size for size, _ in made) >= AGAIN * elements > 0


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
                    arrays[rows] = graph.call_function(force, (rows, stride))  # which takes their order alone
                    arrays[rows].meta["val"] = _lay_out_rows(rows.meta["val"])
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


def _find_layout(tensor: Any) -> list[tuple[int, int]] | None:
    """Return size and stride of each dimension, of varying ones as they are now, or None if they are not known."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    sizes, strides = map(number_hint, tensor.shape), map(number_hint, tensor.stride())
    found = [*zip(sizes, strides, strict=True)]
    return None if any(None in pair for pair in found) else found  # type: ignore[return-value]


def _as_arrays(rows: Any) -> list[int] | None:
    """Return the strides of rows with their last dimension outermost, or None if it does not lie as rows."""
    layout = _find_layout(rows)
    if layout is None or len(layout) < 2 or layout[-1][0] not in SHORT or not isinstance(rows.shape[-1], int):
        return None
    sizes = [size for size, _ in layout]
    return [math.prod(sizes[dim + 1 : -1]) for dim in range(len(sizes) - 1)] + [math.prod(sizes[:-1])]


def _lay_out_rows(rows: torch.Tensor) -> torch.Tensor:
    return rows.movedim(-1, 0).contiguous().movedim(0, -1)


def _view_again(
    graph: torch.fx.Graph, reader: torch.fx.Node, views: list[torch.fx.Node], arrays: torch.fx.Node
) -> torch.fx.Node:
    """Copy views, the last of them first, onto another tensor, and return the tensor for the reader."""
    result = arrays
    with graph.inserting_before(reader):
        for view in reversed(views):
            result = graph.node_copy(view, lambda _, below=result: below)  # type: ignore[misc]
    return result
