"""Every file and folder of the repository that a page names is there."""

from __future__ import annotations

import ast
import re

import pytest
from doc_pages import PAGES, ROOT

NAMED = re.compile(r"`([\w.-]+/[\w./-]*)(?::\w+)?`")
SUFFIXES = (".py", ".toml", ".json", ".md", "/")
OF_READERS = ("path/", "app/", "dist/", "vendor/", "graphs/", "docs/repository/")
"""Paths that stand for files of the reader's own."""
PLACES = (ROOT, ROOT / "src" / "torchwise", ROOT / "docs")


def find_missing(text: str) -> list[str]:
    """Return the paths in inline code that lead nowhere in the repository."""
    named = {path for path in NAMED.findall(text) if path.endswith(SUFFIXES) and not path.startswith(OF_READERS)}
    return sorted(path for path in named if not any((place / path).exists() for place in PLACES))


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_paths_of_a_page_exist(page: str) -> None:
    assert find_missing((ROOT / page).read_text()) == []


def test_a_path_that_leads_nowhere_is_found() -> None:
    text = "`runtime/dispatch.py`, `scripts/`, `src/torchwise/gone.py:main`, `gone/`, `path/yours.py`, `a/b`"
    assert find_missing(text) == ["gone/", "src/torchwise/gone.py"]


def test_the_walk_through_the_code_finds_each_name() -> None:
    rows = re.findall(
        r"^\| [^|]+\? \| `([\w/.]+\.py)` \| `(\w+)` \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 10
    for file, name in rows:
        tree = ast.parse((ROOT / "src" / "torchwise" / file).read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        defined = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assert name in defined, f"{file}: {name}"
