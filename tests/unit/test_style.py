"""The measure of names and prose: it counts every kind that it names, and nothing else."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def style() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("style", str(ROOT / "scripts/style"))
    spec = importlib.util.spec_from_loader("style", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["style"] = module
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["timed", "_kept_caches", "beside", "moving", "told", "without_tail", "given"])
def test_participles_and_prepositions_are_no_names_of_functions(style: ModuleType, name: str) -> None:
    assert style.is_odd(name)


@pytest.mark.parametrize("name", ["time", "to_json", "from_file", "with_choice", "is_timed", "run", "seed"])
def test_verbs_conversions_and_questions_are_names(style: ModuleType, name: str) -> None:
    assert not style.is_odd(name)


def test_a_module_is_counted_by_its_functions_and_docstrings(style: ModuleType) -> None:
    found = style.Figures()
    source = '''
"""One sentence; what follows is another. It is short."""

class Thing:
    """A thing."""

    @property
    def held(self): ...

    def __init__(self): ...

    def taken(self):
        """Return what was taken; or
        nothing at all.

        Args:
            first: a value. It may be anything.
        """

def test_given(): ...
'''
    style.measure_source(ast.parse(source), "file.py", found)
    assert (found.functions, len(found.odd_names)) == (1, 1)
    assert (len(found.whats), len(found.semicolons)) == (2, 2)
    assert [length for length, _ in found.sentences] == [6, 3, 2, 8, 3, 4]


def test_lines_of_pages_are_long_where_they_could_be_broken(style: ModuleType) -> None:
    long = "word " * 30
    page = (
        f"short\n{long}\n| {long} |\n```\n{long}\n```\n{'x' * 200}\n<!-- [[[cog\n]]] -->\n{long}\n<!-- [[[end]]] -->\n"
    )
    assert list(style.long_lines(page)) == [2]


def test_words_of_a_page_are_counted_without_code_and_generated_tables(style: ModuleType) -> None:
    page = (
        "# A page\n\nIt has [a link](../to/a/file.md), and `two words` of code – no more.\n\n| a | table |\n|---|---|\n"
        "```text\nmany words here\n```\n<!-- [[[cog\nmade()\n]]] -->\nmade by a program\n<!-- [[[end]]] -->\n"
    )
    assert style.count_page_words(page) == 2 + 11 + 2


def test_a_page_of_too_many_words_fails_but_not_the_changelog(
    style: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "ROOT", ROOT)
    texts = {"docs/short.md": "word\n" * 1200, "docs/long.md": "word\n" * 1201, "CHANGELOG.md": "word\n" * 5000}
    monkeypatch.setattr(Path, "read_text", lambda file: texts[str(file.relative_to(ROOT))])
    found = style.measure([ROOT / name for name in texts])
    assert found.long_pages == ["docs/long.md: 1201 words"]
    assert found.measures()["long-pages"] == 1


def test_a_source_file_of_too_many_lines_fails_but_not_a_test(
    style: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"src/long.py": "x = 1\n" * 401, "plugins/full.py": "x = 1\n" * 400, "tests/long.py": "x = 1\n" * 401}
    monkeypatch.setattr(Path, "read_text", lambda self: texts[str(self.relative_to(ROOT))])
    assert style.measure([ROOT / name for name in texts]).long_files == ["src/long.py: 401 lines"]


def test_figures_above_a_limit_fail(style: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = style.Figures(functions=1, odd_names=["taken"])
    monkeypatch.setattr(style, "measure", lambda _files: found)
    monkeypatch.setattr(sys, "argv", ["style"])
    assert style.main() == 1
    found.odd_names.clear()
    assert style.main() == 0


def test_private_words_are_counted_in_messages_docstrings_and_pages(style: ModuleType) -> None:
    found = style.Figures()
    source = '"""A price of a mend."""\nraise ValueError(f"no {1} ruling of `mend` is proven")\nKEY = "mend"\n'
    style.measure_source(ast.parse(source), "src/file.py", found)
    assert [case.rpartition(" ")[2] for case in found.private_words] == ["mend", "ruling", "proven"]
    style.measure_source(ast.parse(source), "tests/file.py", found)
    assert len(found.private_words) == 3
    page = "An artefact, and `legality` and [words](rulings.md).\n```\nthe mend is proven\n```\n"
    assert list(style.private_words(page)) == [(1, "artefact")]
