"""The search of the documentation in a real browser, in a folder without a server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIG = """
site_name: Small
use_directory_urls: false
exclude_docs: "hooks.py\\nsearch.js"
hooks: [docs/hooks.py]
theme: {name: mkdocs, highlightjs: false}
extra_css: [pygments.css, site.css]
plugins: [search]
"""


def build_site(folder: Path) -> Path:
    """Build a site of three pages with the search and the style of the documentation."""
    docs = folder / "docs"
    (docs / "reference").mkdir(parents=True)
    for name in ("hooks.py", "search.js", "site.css"):
        shutil.copy(ROOT / "docs" / name, docs)
    (docs / "index.md").write_text("# Start\n\nWelcome.\n")
    (docs / "serving.md").write_text("# Serving\n\n## Limits\n\nA batch of requests.\n")
    (docs / "reference" / "plans.md").write_text(
        f"# Plans\n\nA graph. {'word ' * 60}\n\n## Graph breaks\n\nThey cost.\n"
    )
    (folder / "mkdocs.yml").write_text(CONFIG)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_a_word_leads_to_its_section_from_any_page(browser: Any, tmp_path: Path) -> None:
    page = browser.new_context(viewport={"width": 400, "height": 900}).new_page()
    page.goto((build_site(tmp_path) / "reference" / "plans.html").as_uri())
    page.locator(".navbar-toggler").first.click()
    page.locator("[data-bs-target='#mkdocs_search_modal']").click()
    box, titles = page.locator("#mkdocs-search-query"), page.locator("#mkdocs-search-results h3")
    box.fill("graph")
    titles.nth(1).wait_for()
    assert sorted(titles.all_inner_texts()) == ["Plans", "Plans: Graph breaks"]
    texts = page.locator("#mkdocs-search-results p").all_inner_texts()
    assert all(len(text) < 210 and "\u00b6" not in text for text in texts)
    assert any(text.endswith("word \u2026") for text in texts), "cut between words"
    box.fill("nowhere")
    page.get_by_text("No results found").wait_for()
    box.fill("batch")
    page.get_by_role("link", name="Serving: Limits").click()
    page.wait_for_url("**/serving.html#limits")
    page.context.close()
