"""The page of the needs of five systems: each of its tests exists, and each of its figures is in the results."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest
from doc_pages import ROOT


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("needs")


def find_tests(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def flatten(text: str) -> str:
    return " ".join(text.split())


def test_every_need_has_a_test_that_exists(needs: ModuleType) -> None:
    for need in needs.read_needs():
        assert need.tests, need.asked
        for test in need.tests:
            file, _, name = test.partition("::")
            assert name in find_tests(ROOT / "tests" / file), test


def test_every_figure_is_in_the_results_that_it_names(needs: ModuleType) -> None:
    for need in needs.read_needs():
        assert bool(need.results) == bool(need.says), need.asked
        found = flatten((ROOT / "benchmarks" / "results" / need.results).read_text()) if need.results else ""
        assert [words for words in need.says if flatten(words) not in found] == [], need.asked


def test_every_item_has_a_table(needs: ModuleType) -> None:
    assert {need.item for need in needs.read_needs()} == {int(number) for number in needs.read_file()["title"]}
    assert needs.tables().count(needs.HEAD) == 9
