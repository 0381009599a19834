"""Numbers that a graph computes from the sizes of its inputs, as SymPy expressions and as nodes."""

from __future__ import annotations

from typing import Any

import torch

from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

INTERPRET = PrivateName("torch.utils._sympy.interp", "sympy_interp")
"""Evaluates an expression with the operators of an analysis."""
PYTHON_OPERATORS = PrivateName("torch.utils._sympy.reference", "PythonReferenceAnalysis")
"""The analysis that uses Python's own operators, which a proxy records."""

KNOWN_TRUE = PrivateName("torch.fx.experimental.symbolic_shapes", "statically_known_true")
"""Whether a condition on sizes holds for all of them, without a new condition on later calls."""

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""The types of a number that a graph for several sizes computes from the sizes of its inputs."""
_PLAIN: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def number_expression(number: Any) -> Any:
    """Return the expression of a `SymInt`, `SymFloat` or `SymBool`."""
    return number.node.expr


def varies(number: Any) -> bool:
    """Return whether a number of a graph depends on the sizes of its inputs."""
    return isinstance(number, NUMBERS) and bool(number_expression(number).free_symbols)


def is_surely(condition: Any) -> bool:
    """Whether a condition holds for all sizes of the inputs. It puts no condition on later calls."""
    return condition if isinstance(condition, bool) else bool(KNOWN_TRUE.get()(condition))


def list_conditions(program: torch.export.ExportedProgram) -> list[str]:
    """List the conditions on sizes under which an exported program was compiled so far, in their order."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    modes = (getattr(value, "fake_mode", None) for value in values)
    known = next((mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None), None)
    if known is None:
        return []
    return [str(guard.expr) for guard in known.guards] + [f"{k} = {v}" for k, v in known.replacements.items()]


def number_hint(number: Any) -> int | None:
    """Return a size as it is now, or None if it depends on data. It puts no condition on later calls."""
    return number if isinstance(number, int) else number.node.hint


def node_for_number(number: Any, nodes: dict[Any, torch.fx.Node]) -> Any:
    """Return a node that computes a number, or the number itself if it is the same for all sizes.

    Args:
        number: a `SymInt`, `SymFloat` or `SymBool`.
        nodes: the nodes whose numbers are known, by expression. The result is added, at the insertion point of their
            graph.

    Raises:
        UnsupportedError: a symbol in the expression has no node, or this torch lacks a private name.
    """
    expression = number_expression(number)
    if not expression.free_symbols:
        return _PLAIN[type(number)](number)
    if expression not in nodes:
        if missing := sorted(map(str, expression.free_symbols - nodes.keys())):
            raise UnsupportedError(f"the size {', '.join(missing)} is no input of its graph")
        symbols = {symbol: torch.fx.Proxy(nodes[symbol]) for symbol in expression.free_symbols}
        made = INTERPRET.get()(PYTHON_OPERATORS.get(), symbols, expression).node
        _fill_values(made)
        nodes[expression] = made
    return nodes[expression]


def _fill_values(node: torch.fx.Node) -> None:
    """Compute the numbers of new nodes, which Inductor reads."""
    if "val" not in node.meta:
        for source in node.all_input_nodes:
            _fill_values(source)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
