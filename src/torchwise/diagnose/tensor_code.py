"""Rewrite code that turns tensors into Python numbers and bools, so that they stay tensors."""

from __future__ import annotations

import ast
import copy


def as_tensor(condition: str) -> str:
    """Return a condition rewritten so that its value is a tensor, or empty if its text is no expression.

    Only running it shows whether the value is a tensor. It is one for `a or b` if a and b are tensors, and never for
    `n in seen`.
    """
    try:
        tree = ast.parse(condition, mode="eval").body
    except SyntaxError:
        return ""
    return ast.unparse(ast.fix_missing_locations(_TensorConditions().visit(tree)))


def keep_tensors(statement: ast.stmt | None) -> str:
    """Return a statement that keeps tensors instead of numbers, or empty if it is not simple or nothing changes."""
    return _rewrite(statement, _WithoutNumbers())


def with_where(statement: ast.stmt | None) -> str:
    """Return a statement with `torch.where` in place of a conditional expression, or empty if it has none."""
    return _rewrite(statement, _WithWhere())


def _rewrite(statement: ast.stmt | None, transformer: ast.NodeTransformer) -> str:
    """Return a simple statement as a transformer changes it, or empty if nothing changes."""
    if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
        return ""
    after = ast.unparse(ast.fix_missing_locations(transformer.visit(copy.deepcopy(statement))))
    return after if after != ast.unparse(statement) else ""


class _WithoutNumbers(ast.NodeTransformer):
    """Removes `.item()`, `int()`, `float()` and `bool()`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:  # the name is ast's
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            return node.func.value
        if isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "bool") and len(node.args) == 1:
            return node.args[0]
        return node


class _TensorConditions(_WithoutNumbers):
    """Replaces Python's bools by tensors: `and`, `or`, `not`, chains of comparisons, `allclose` and `equal`."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = "torch.logical_and" if isinstance(node.op, ast.And) else "torch.logical_or"
        return _fold_calls(name, node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _make_call("torch.logical_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            ast.Compare(left, [how], [right])
            for left, how, right in zip(sides, node.ops, node.comparators, strict=False)
        ]
        return _fold_calls("torch.logical_and", pairs)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        call = super().visit_Call(node)
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return call
        elementwise = {"allclose": "isclose", "equal": "eq"}.get(call.func.attr)
        if elementwise is None:
            return call
        each = ast.Call(ast.Attribute(call.func.value, elementwise, ast.Load()), call.args, call.keywords)
        return ast.Call(ast.Attribute(each, "all", ast.Load()), [], [])


class _WithWhere(ast.NodeTransformer):
    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return _make_call("torch.where", _TensorConditions().visit(node.test), node.body, node.orelse)


def _make_call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.parse(name, mode="eval").body, list(args), [])


def _fold_calls(name: str, parts: list[ast.expr]) -> ast.expr:
    first, *rest = parts
    for part in rest:
        first = _make_call(name, first, part)
    return first
