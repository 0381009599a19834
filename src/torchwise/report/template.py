"""Render pages from templates: in one layout, escaped, and with the same bytes for the same records."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree
from html import escape
from importlib.resources import files
from typing import Any, Literal

from torchwise.report import format as show

Theme = Literal["light", "dark"]


def render(template: str, **context: Any) -> str:
    """Return a page.

    Args:
        template: name of a file in `report/templates` that extends `layout`.
        **context: the page's contents. `layout`, `css` and `show` are already there.
    """
    return _render(template, "base.html.j2", _css(), **context)


def render_part(template: str, theme: Theme, **context: Any) -> str:
    """Return the output of `render` as a part of another page, in one theme.

    HTML sanitisers accept it, since drawings are images, and one element holds all styles of this part.

    Args:
        template: as for `render`.
        theme: "light" or "dark", regardless of the browser's preference.
        **context: as for `render`.
    """
    part = _render(template, "part.html.j2", _part_css(theme), **context)
    colors = _colors(theme)
    return re.sub(r"<svg .*?</svg>", lambda found: _image(found[0], colors), part, flags=re.DOTALL)


def _css() -> str:
    return files("torchwise.report").joinpath("templates/report.css").read_text(encoding="utf-8")


def _colors(theme: Theme) -> dict[str, str]:
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


def _render(template: str, layout: str, css: str, **context: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("torchwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_sanitize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(layout=layout, css=Markup(css), show=show, **context)


def _sanitize(value: Any) -> Any:
    """Remove characters from a text that could mislead a reader or a parser. Jinja escapes the result."""
    return show.plain(value) if type(value) is str else value
