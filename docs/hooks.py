"""Three things that MkDocs leaves to its user; it calls `on_…` by their names (`hooks:` in mkdocs.yml).

Links to files outside docs/, written as a code host needs them (`../README.md`), would lead out of the site: such files
go along below `repository/`. A link to a file that is not there stays as it is, and MkDocs refuses it.

Code gets its colours from Pygments, for light and dark screens.

The search works without a server, too: its index is a script (`search.js`).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
ALONG = "repository/"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the colours, the files that pages link to, and those that these link to in turn."""
    files.append(File.generated(config, "pygments.css", content=colours()))
    root = Path(config.config_file_path).parent
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        text = (root / to_repository_path(page)).read_text()
        for uri in {to_site_path(target(page, link)) for link in LINK.findall(text)}:
            source = root / to_repository_path(uri)
            if uri.startswith(ALONG) and source.is_file() and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(source)))
                waiting += [uri] if uri.endswith(".md") else []


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Have links lead to where the files lie in the site."""
    own = page.file.src_uri
    return LINK.sub(
        lambda link: posixpath.relpath(to_site_path(target(own, link[1])), posixpath.dirname(own)), markdown
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Replace MkDocs's search, which a browser refuses to run from a folder."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text()
    (folder / "index.js").write_text(f"const searchIndex = {index};\n")
    (folder / "main.js").write_text((Path(config.docs_dir) / "search.js").read_text())
    for unused in ("search_index.json", "worker.js"):
        (folder / unused).unlink()


def target(page: str, link: str) -> str:
    """Return the path in the repository of what a page of the site links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(to_repository_path(page)), link))


def to_repository_path(uri: str) -> str:
    """Return the path in the repository of what lies at `uri` in the site."""
    return uri.removeprefix(ALONG) if uri.startswith(ALONG) else f"docs/{uri}"


def to_site_path(path: str) -> str:
    """Return the place in the site of a path in the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{ALONG}{path}"


def colours() -> str:
    """Return the style sheet for code."""
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    return f"{light}\n{HtmlFormatter(style='github-dark').get_style_defs('[data-bs-theme=dark] .highlight')}\n"
