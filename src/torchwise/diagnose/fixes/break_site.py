"""The basis for choosing a fix: PyTorch's message about a break, and its line of source."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable

from torchwise._torch import dynamo
from torchwise.records.compile_events import Break, CodeFix

_SETTING = re.compile(rf"{re.escape(str(dynamo.CONFIG))}\.(?P<name>\w+)")


class BreakSite:
    """The texts about one break.

    Attributes:
        message: PyTorch's reason, explanation and context, in one text.
        line: the source line.
    """

    def __init__(self, graph_break: Break) -> None:
        self.message = "\n".join((graph_break.reason, graph_break.explanation, graph_break.context))
        self.line = graph_break.excerpt
        self._hints = graph_break.hints

    def says(self, pattern: str) -> bool:
        """Return whether PyTorch's message matches."""
        return re.search(pattern, self.message) is not None

    def reads(self, pattern: str) -> bool:
        """Return whether the source line matches."""
        return re.search(pattern, self.line) is not None

    def find_setting(self, default: str) -> str:
        """Return the setting of PyTorch that its hints name. Its name differs from version to version."""
        hits = [hit["name"] for hint in self._hints if (hit := _SETTING.search(hint))]
        return f"{dynamo.CONFIG}.{hits[0] if hits else default}"

    @functools.cached_property
    def statement(self) -> ast.stmt | None:
        """The statement of the line, or None if the line holds only a part of one."""
        line = re.sub(r"^elif\b", "if", self.line)
        for text in (line, f"{line}\n pass"):  # a comment may end the line
            try:
                return ast.parse(text).body[0]
            except (SyntaxError, IndexError):
                continue
        return None

    @functools.cached_property
    def condition(self) -> str:
        """The condition of the line's `if` or `while`, or empty if it has none."""
        if self.statement is None:
            return ""
        test = next((node.test for node in ast.walk(self.statement) if isinstance(node, _CONDITIONALS)), None)
        return ast.unparse(test) if test else ""

    def find_call(self, pattern: str) -> str:
        """Return the source of the line's first call to a function whose name matches, or an empty text."""
        for node in ast.walk(self.statement) if self.statement else ():
            if isinstance(node, ast.Call) and re.search(pattern, ast.unparse(node.func)):
                return ast.unparse(node)
        return ""

    @property
    def quoted(self) -> str:
        """The line, short enough to stand in a sentence."""
        return f"`{self.line if len(self.line) <= 80 else self.line[:77] + '...'}`" if self.line else "this line"


_CONDITIONALS = (ast.If, ast.While, ast.IfExp, ast.Assert)

Rule = Callable[[BreakSite], CodeFix | None]
"""Returns a fix, or None if the break is of another class."""
