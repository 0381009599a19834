"""Find whole numbers of 64 bits in a program that a compiler with 32 bits may compute wrongly.

Each node gets a bound of its numbers, from the bound of the inputs on. A node that depends on the contents of an input
is refused if its numbers may be too large, or if nothing is known about its operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchwise._torch.symbols import varies
from torchwise.compile.backends.index_checks import KEEPS_ALL, TAKES_PART, find_checks, name_of
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.compile.backends.operator_problems import list_arguments
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
MOST = 2**31
LARGEST_SIZE = 2**20
"""Assumed for a size that varies, and for whole numbers that depend on sizes alone."""
WITHIN = {
    *("where", "cat", "stack", "gather", "index", "index_select", "embedding", "masked_fill", "masked_select", "flip"),
    *("clamp", "clamp_min", "clamp_max", "maximum", "minimum", "amax", "amin", "roll", "constant_pad_nd", "pad", "div"),
    *("floor_divide", "remainder", "fmod", "bitwise_and", "bitwise_or", "scatter", "index_put", "lift_fresh_copy"),
    *("broadcast_to", "expand_as", "view_as", "type_as", "movedim", "tril", "triu", "copy", "fill", "abs", "neg"),
    *("max", "min"),
}
"""Operators whose numbers are no larger than those of their operands."""
PLACES = {
    *("argmax", "argmin", "argsort", "sort", "topk", "max", "min", "nonzero", "one_hot", "embedding_bag"),
    *(
        f"{kind}{dims}d{ending}"
        for dims in "123"
        for kind, ending in (("max_pool", "_with_indices"), ("adaptive_max_pool", ""))
    ),
}
"""Operators whose whole numbers are places in their inputs, or numbers of them."""
SHAPED_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
"""Operators that read no contents."""


WIDTHS = (30, 24, 20, 16, 8)
"""Bits of the whole numbers that inputs may hold, the most first. Each call is checked, so that fewer are safe."""


def find_range(program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]) -> range:
    """Return the widest range of whole numbers in the inputs for which all others fit into 32 bits.

    An attention mask is an example: the sum over it is a position, and fits if the mask holds no large numbers.

    Raises:
        UnsupportedError: they fit for none that holds the numbers of these inputs.
    """
    whole = [one for one in inputs if one.dtype is torch.int64 and one.numel()]
    most = max((max(map(abs, map(int, torch.aminmax(one)))) for one in whole), default=0)
    problem: UnsupportedError | None = None
    for bits in WIDTHS:
        allowed = range(-(2**bits), 2**bits)
        if most not in allowed and problem is not None:
            break
        try:
            check_whole_numbers(program, allowed)
        except UnsupportedError as error:
            problem = problem or error
        else:
            return allowed
    assert problem is not None
    raise problem


def check_whole_numbers(program: torch.export.ExportedProgram, widest: range) -> None:
    """Refuse a program that computes whole numbers of more than 32 bits from inputs within `widest`.

    Raises:
        UnsupportedError: it may compute one.
    """
    names = [*map(str, program.graph_signature.user_inputs)]
    checks = (one for one in find_checks(program, widest) if not one.steps)
    given = dict.fromkeys(names, math.inf) | {
        names[one.place]: max(one.allowed.stop, -one.allowed.start) for one in checks
    }
    bounds, from_inputs = dict[Node, float](), set[Node]()
    for node in program.graph.nodes:
        is_read = not name_of(node).startswith("sym_") and name_of(node) not in SHAPED_LIKE
        if node.name in given or (is_read and any(one in from_inputs for one in node.all_input_nodes)):
            from_inputs.add(node)
        of_dtype = max(map(_widest, _list_tensors(node.meta.get("val"))), default=0)
        if node.op == "output" or not of_dtype:
            continue
        if node.op == "placeholder":
            bounds[node] = given[node.name] if node.name in given else _find_largest_constant(program, node.name)
        else:
            bounds[node] = _find_bound(node, bounds, from_inputs)
        bounds[node] = min(bounds[node], of_dtype)
        if bounds[node] > MOST:
            raise OperatorError(
                f"its whole numbers may need 64 bits and would get 32 ({node.target}): leave it to another compiler",
                [node],
            )


def find_dtypes(program: torch.export.ExportedProgram, known: set[torch.dtype]) -> dict[torch.dtype, list[Node]]:
    """Return the other dtypes of tensors in a program than those that are known, each with the nodes that have it."""
    found = dict[torch.dtype, list[Node]]()
    for node in program.graph.nodes:
        for one in _list_tensors(node.meta.get("val")):
            if one.dtype not in known:
                found.setdefault(one.dtype, []).append(node)
    return found


def _find_bound(node: Node, bounds: dict[Node, float], from_inputs: set[Node]) -> float:
    """Return a bound of an operator's whole numbers. It is infinite if nothing is known."""
    name, sources = name_of(node).rstrip("_"), node.all_input_nodes
    if name in KEEPS_ALL or name in TAKES_PART:
        sources = sources[:1]
        operands = [_bound_of(sources[0], bounds)]
    else:
        operands = [_bound_of(one, bounds) for one in _flatten((*node.args, *node.kwargs.values()))]
    most = max(operands, default=0)
    if name in TAKES_PART:
        return most
    if name in PLACES and "other" not in list_arguments(node):
        counts = [_count(one) for one in sources if _list_tensors(one.meta.get("val"))]
        return max(most, min(max(counts), MOST // 2))
    if any(one in from_inputs and _is_float(one) for one in sources):
        return math.inf
    if name in WITHIN or name in KEEPS_ALL:
        return most
    if name in ("add", "sub", "rsub"):
        scale: float = list_arguments(node)["alpha"]
        return operands[0] + operands[1] * max(abs(scale), 1)
    if name == "mul":
        return operands[0] * operands[1]
    if name in ("sum", "cumsum"):  # the latter adds no more than the former
        dims = [list_arguments(node)["dim"]] if name == "cumsum" else list_arguments(node).get("dim")
        return _bound_of(sources[0], bounds) * _count(sources[0], dims)
    return math.inf if node in from_inputs else max(most, LARGEST_SIZE)


def _bound_of(one: Any, bounds: dict[Node, float]) -> float:
    """Return a bound of an operand: a node, or a number."""
    if not isinstance(one, Node):
        return abs(one) if isinstance(one, (int, float)) else 0
    if one in bounds:
        return bounds[one]
    tensors = _list_tensors(one.meta.get("val"))
    return max(max(map(_widest, tensors)), 1) if tensors else LARGEST_SIZE


def _widest(tensor: torch.Tensor) -> int:
    """Return the largest absolute value of a tensor's whole numbers, or 0 if it has others."""
    if tensor.dtype is torch.bool:
        return 1
    return 0 if tensor.is_floating_point() or tensor.is_complex() else torch.iinfo(tensor.dtype).max + 1


def _find_largest_constant(program: torch.export.ExportedProgram, name: str) -> float:
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    kept = program.state_dict.get(names.get(name, ""))
    if kept is None:
        kept = program.constants.get(signature.inputs_to_lifted_tensor_constants.get(name, names.get(name, "")))
    if not isinstance(kept, torch.Tensor):
        return math.inf
    return max(map(abs, map(int, torch.aminmax(kept)))) if kept.numel() else 0


def _list_tensors(value: Any) -> list[torch.Tensor]:
    values: Sequence[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return [one for one in values if isinstance(one, torch.Tensor)]


def _is_float(node: Node) -> bool:
    return any(one.is_floating_point() for one in _list_tensors(node.meta.get("val")))


def _count(node: Node, dims: Sequence[int] | None = None) -> int:
    """Return the number of a node's numbers in dimensions, with an assumed size in those that vary."""
    shape = max((one.shape for one in _list_tensors(node.meta.get("val"))), key=len)
    sizes = [LARGEST_SIZE if varies(size) else int(size) for size in shape]
    return math.prod(sizes[dim] for dim in (dims or range(len(sizes))) if sizes)


def _flatten(args: Sequence[Any]) -> Iterator[Any]:
    for one in args:
        if isinstance(one, (tuple, list)):
            yield from _flatten(one)
        else:
            yield one
