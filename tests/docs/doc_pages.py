"""The pages that are read by users, and the content of their code blocks."""

from __future__ import annotations

from pathlib import Path

from sybil import Sybil
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser
from sybil.typing import Evaluator

ROOT = Path(__file__).parents[2]
PAGES = tuple(sorted(str(file.relative_to(ROOT)) for file in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))))


def read(page: str, **evaluators: Evaluator) -> Document:
    """Return a page whose code blocks, by language, are given to these."""
    parsers = [CodeBlockParser(language, evaluator) for language, evaluator in evaluators.items()]
    return Sybil(parsers).parse(ROOT / page)


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Return the code blocks of a page in a language, with the line that each begins at."""
    document = read(page, **{language: lambda _example: None})
    return [(example.line, str(example.parsed)) for example in document]
