"""An explanation as one self-contained page, in the layout of `base.html.j2`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchwise.records.explanation import Explanation
from torchwise.report import summary
from torchwise.report.explain import text
from torchwise.report.explain.plots import plots
from torchwise.report.json_export import write_atomically, write_json
from torchwise.report.template import Theme, render, render_part

TEMPLATE = "explain.html.j2"


def render_explanation_html(explanation: Explanation, store: str | None = None) -> str:
    """Return an explanation as a self-contained page. The same explanation always gives the same page."""
    return render(TEMPLATE, **_context(explanation, store))


def render_explanation_part(explanation: Explanation, theme: Theme) -> str:
    """Return an explanation as a part of a page. See `template.render_part`."""
    return render_part(TEMPLATE, theme, **_context(explanation))


def _context(explanation: Explanation, store: str | None = None) -> dict[str, Any]:
    explanation = explanation.make_consistent()
    return {
        "explanation": explanation,
        "headline": text.headline(explanation),
        "trust": explanation.trust,
        "order": text.order(explanation),
        "place": text.place(explanation),
        "execution": text.execution(explanation),
        "capturable": text.capturable(explanation),
        "describe_saving": text.describe_saving,
        "gains": text.gains,
        "describe_fix": text.describe_fix,
        "links": text.links,
        "nothing": text.NOTHING,
        "plots": plots(explanation),
        "kernels": [text.cells(kernel) for kernel in explanation.kernels],
        "steps": text.next_steps(explanation, store),
        "environment": summary.machine(explanation.environment),
    }


def write_explanation(
    explanation: Explanation, *, html: Path | None = None, json: Path | None = None, store: str | None = None
) -> None:
    """Write a page, or schema `torchwise.explanation/1`, each whole or not at all. `store` is as in `next_steps`.

    Raises:
        StorageError: a file cannot be written.
    """
    if html:
        write_atomically(render_explanation_html(explanation, store), html)
    if json:
        write_json(explanation, json)
