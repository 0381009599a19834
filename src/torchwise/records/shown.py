"""Results that a notebook shows as reports."""

from __future__ import annotations

import importlib

VIEWS = "torchwise.report.views"
"""Has the report on each kind of result. It is imported when one is shown, as reports are made of records."""


class Shown:
    """Base of results. A notebook shows one as the page of its report, by the renderer of all pages."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        page: str = importlib.import_module(VIEWS).render_view(self)
        return page
