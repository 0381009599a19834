"""Copy a callable with code objects of its own, unchanged or with one line of its program rewritten.

Dynamo attaches compiled code to a code object. Otherwise two compilations of one code object would answer each other's
calls, or be looked up one after the other. If a graph breaks inside an inner function, the two still share that
function's code.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchwise.compile.shared_copies import share

Origin = tuple[str, int, str]
"""The origin of a code object: its file, first line and name."""


def copy_with_fresh_code(call: Callable[..., Any], *, with_state: bool = True) -> Callable[..., Any]:
    """Return a copy of a module, which shares its parameters, or of a function, with a new outermost code object.

    Anything else is returned unchanged.

    Args:
        call: a module or a function.
        with_state: whether the copy of a module shares all its state. Otherwise it has its own buffers and attributes,
            and new code in all submodules.

    Raises:
        UnsupportedError: something in it cannot be copied.
    """
    if isinstance(call, types.FunctionType):
        return _copy_function(call)
    if not isinstance(call, torch.nn.Module):
        return call
    if with_state and ("forward" in vars(call) or not isinstance(type(call).forward, types.FunctionType)):
        return call
    copied = share(call, with_state=with_state)
    parts = [copied] if with_state else [p for p in copied.modules() if not type(p).__module__.startswith("torch.")]
    kinds: dict[type, type] = {}
    for part in parts:
        kind, forward = type(part), type(part).forward
        if isinstance(forward, types.FunctionType):
            body = {"forward": _copy_function(forward), "__module__": kind.__module__}
            part.__class__ = kinds.setdefault(kind, type(kind.__name__, (kind,), body))
    return copied


def _copy_function(function: types.FunctionType, code: types.CodeType | None = None) -> types.FunctionType:
    """Return a copy of a function with new code, by default with a copy of its own."""
    copied = types.FunctionType(
        code or function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(vars(function))
    return copied


def rewritten(call: Callable[..., Any], file: str, line: int, statement: str) -> Callable[..., Any] | None:
    """Return a copy of a callable with one line rewritten, or None if that line is in no method of its own.

    Args:
        call: a module or a function.
        file: the file of the line.
        line: counted from 1. A statement must begin there.
        statement: the replacement.

    Raises:
        Exception: any error from reading and compiling the file.
    """
    new = _compile_rewritten(file, line, statement)
    if new is None:
        return None
    if isinstance(call, types.FunctionType):
        return _copy_function(call, new) if _origin_of(call.__code__) == _origin_of(new) else None
    if not isinstance(call, torch.nn.Module):
        return None
    copied = copy_with_fresh_code(call, with_state=False)
    assert isinstance(copied, torch.nn.Module)
    changed = [_rewrite(kind, new) for kind in {type(part) for part in copied.modules()}]
    return copied if any(changed) else None


def _rewrite(kind: type, new: types.CodeType) -> bool:
    """Replace a method that a copied class has or inherits."""
    for name in dir(kind):
        function = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if isinstance(function, types.FunctionType) and _origin_of(function.__code__) == _origin_of(new):
            setattr(kind, name, _copy_function(function, new))
            return True
    return False


def _origin_of(code: types.CodeType) -> Origin:
    return (code.co_filename, code.co_firstlineno, code.co_name)


def _compile_rewritten(file: str, line: int, statement: str) -> types.CodeType | None:
    """Compile a file with one line rewritten, and return the code of the function around it."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"), file)
    place = _Place(line)
    place.visit(tree)
    if place.body is None or place.function is None:
        return None
    number = next(n for n, one in enumerate(place.body) if one.lineno == line)
    place.body[number : number + 1] = [_move_to_line(line, one) for one in ast.parse(statement).body]
    begins = min(one.lineno for one in (place.function, *place.function.decorator_list))
    return next(
        (
            code
            for code in _codes(compile(tree, file, "exec", dont_inherit=True))
            if _is_at(code, place.function, begins)
        ),
        None,
    )


def _is_at(code: types.CodeType, function: ast.FunctionDef | ast.AsyncFunctionDef, begins: int) -> bool:
    return code.co_name == function.name and code.co_firstlineno == begins


def _move_to_line(line: int, statement: ast.stmt) -> ast.stmt:
    for node in ast.walk(statement):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    return statement


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)


class _Place(ast.NodeVisitor):
    """Finds the innermost function around a line, and the list with the statement that begins there."""

    def __init__(self, line: int) -> None:
        self.function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self.body: list[ast.stmt] | None = None
        self._line = line

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= self._line <= (
            node.end_lineno or 0
        ):
            self.function = node
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and any(getattr(one, "lineno", 0) == self._line for one in statements):
                self.body = statements
        super().generic_visit(node)
