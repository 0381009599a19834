"""A document as a page: self-contained, escaped, and with the same bytes for the same records.

A page has no script and fetches nothing. It is readable in light and dark themes, on phones and on paper.
"""

from __future__ import annotations

import base64
import functools
import re
import xml.etree.ElementTree as ElementTree
from html import escape
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from torchwise.records import format as show
from torchwise.report.document import Document

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

Theme = Literal["light", "dark"]
TEMPLATE = "page.html.j2"


def render_page(document: Document) -> str:
    """Return a document as a page."""
    return _render(document, _css(), is_part=False)


def render_part(document: Document, theme: Theme) -> str:
    """Return a document as a part of another page, in one theme, regardless of the browser's preference.

    HTML sanitisers accept it, since drawings are images, and one element holds all styles of this part.
    """
    part = _render(document, _part_css(theme), is_part=True)
    colors = read_colors(theme)
    return re.sub(r"<svg .*?</svg>", lambda found: _image(found[0], colors), part, flags=re.DOTALL)


def _css() -> str:
    return files("torchwise.report").joinpath("templates/report.css").read_text(encoding="utf-8")


def read_colors(theme: Theme) -> dict[str, str]:
    """Return the colours of a theme by the names of their variables. The dark theme inherits missing ones."""
    light, dark = _css().split("@media", 1)
    found = light if theme == "light" else light + dark.split("@media")[0]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", found))


def _image(svg: str, colors: dict[str, str]) -> str:
    """Return a drawing as an image, independent of the page's colours and security policy."""
    root = ElementTree.fromstring(svg)
    label = root.get("aria-label", "")
    halo = f"text {{ paint-order: stroke; stroke: {colors['card']}; stroke-width: 3px }}"
    ElementTree.SubElement(root, "style").text = halo
    root.set("xmlns", "http://www.w3.org/2000/svg")
    text = re.sub(
        r"var\(--([a-z0-9-]+)\)", lambda name: colors[name[1]], ElementTree.tostring(root, encoding="unicode")
    )
    return f'<img alt="{escape(label)}" src="data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}">'


def _part_css(theme: Theme) -> str:
    """Return the pages' style, nested in one element that replaces the root and the body."""
    css = re.sub(r"(?m)^(\s*)(:root|body)(?= \{)", r"\1&", _css())
    query = "screen and (prefers-color-scheme: dark)"
    return f".torchwise {{\n{css.replace(query, 'screen' if theme == 'dark' else 'not all')}\n}}"


def _render(document: Document, css: str, *, is_part: bool) -> str:
    from markupsafe import Markup

    numbers = count(1)
    context = {"document": document, "css": Markup(css), "is_part": is_part, "number": lambda: next(numbers)}
    return _load_template().render(context)


@functools.cache  # a dashboard draws many, and reading the template takes longer than filling it
def _load_template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("torchwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_sanitize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["prose"] = _mark_code
    return environment.get_template(TEMPLATE)


def _mark_code(text: str) -> Markup:
    """Return a sentence with its code, which stands in backticks, as such. All of it is escaped."""
    from markupsafe import Markup

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(show.plain(text))))


def _sanitize(value: Any) -> Any:
    """Remove characters from a text that could mislead a reader or a parser. Jinja escapes the result."""
    return show.plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
