"""From a template to a page: one look, escaped, and the same bytes for the same records."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from torchwise.report import format as show


def render(template: str, **context: Any) -> str:
    """Return a page.

    Args:
        template: name of a file in `report/templates` that extends `base.html.j2`.
        **context: what the page shows; `css` and `show` are there already.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("torchwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = Markup(files("torchwise.report").joinpath("templates/report.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(css=css, show=show, **context)


def _finalized(value: Any) -> Any:
    """Take out of every text what could fool a reader or a parser; the escaping comes after this."""
    return show.plain(value) if type(value) is str else value
