"""The site builds without a warning, and its reference has every public name once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_pages import PAGES, ROOT, blocks

import torchwise


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
    ]  # --quiet would hide warnings from --strict
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_and_holds_every_page(site: Path) -> None:
    names = [page.removeprefix("docs/").replace(".md", ".html") for page in PAGES if page.startswith("docs/")]
    assert [name for name in names if not (site / name).is_file()] == []


def test_links_out_of_docs_lead_to_files_of_the_site(site: Path) -> None:
    assert 'href="repository/index.html"' in (site / "index.html").read_text()  # ../README.md
    assert '<a href="../serving.html">Serving a plan</a>' in (site / "repository" / "index.html").read_text()
    assert (site / "repository" / "benchmarks" / "results" / "2026-11-21-h200-zoo-speedup.svg").is_file()


def test_no_page_needs_a_network_to_be_read(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:)?//')
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_the_search_needs_no_server(site: Path) -> None:
    page, script = (site / "reference" / "plans.html").read_text(), (site / "search" / "main.js").read_text()
    assert 'src="../search/main.js"' in page
    assert 'id="mkdocs-search-query"' in page
    assert "Worker(" not in script
    assert not re.search(r"fetch\(|XMLHttpRequest", script)
    assert "reference/plans.html#torchwise.Plan" in (site / "search" / "index.js").read_text()


def test_wide_tables_scroll_on_a_phone(site: Path) -> None:
    assert 'href="../site.css"' in (site / "reference" / "plans.html").read_text()
    assert "overflow-x: auto" in (site / "site.css").read_text()


def test_the_reference_has_every_public_name_once() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = [name for page in pages for name in re.findall(r"^::: torchwise\.(\w+)$", page.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(torchwise.__all__)


def test_every_name_of_the_reference_shows_its_docstring(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for name in torchwise.__all__:
        assert f'id="torchwise.{name}"' in text
    for said in (
        "Find the fastest verified way to run",
        "Say where the compiled",
        "Base of every error raised on purpose",
    ):
        assert said in text


def test_the_tutorial_quotes_its_example_as_it_stands() -> None:
    source = (ROOT / "examples" / "slow_model.py").read_text()
    quoted = [block for _line, block in blocks("docs/tutorial.md", "python") if block.startswith("class ")]
    assert len(quoted) == 2
    assert [block for block in quoted if block.strip() not in source] == []


def test_the_readme_begins_with_all_that_a_newcomer_needs() -> None:
    readme = (ROOT / "README.md").read_text()
    first = "\n".join(readme.splitlines()[:60])
    needed = ("](docs/report.png)", "$ pip install ", "$ torchwise tune model.py:make", "minute", "torchwise.optimize(")
    assert [text for text in needed if text not in first] == []
    assert (ROOT / "docs" / "report.png").read_bytes().startswith(b"\x89PNG")
    source = next(block for _line, block in blocks("README.md", "python"))
    assert len([line for line in source.splitlines() if line]) <= 6
    made: dict[str, Any] = {}
    exec(source, made)
    model, args = made["make"]()
    assert model(*args).isfinite().all()


def test_every_decision_is_dated_listed_and_has_its_evidence() -> None:
    folder = ROOT / "docs" / "design" / "decisions"
    listed = (folder / "index.md").read_text()
    pages = [page for page in folder.glob("*.md") if page.name != "index.md"]
    assert len(pages) == len(re.findall(r"\]\(20", listed)) > 0
    for page in pages:
        text, date = page.read_text(), page.name[:10]
        title = text.splitlines()[0].removeprefix("# ")
        assert f"- {date}: [{title}]({page.name})" in listed.replace("\n  ", " ")
        assert text.splitlines()[2] == date
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Evidence"]
