"""A study as one self-contained page: no script, no network, light and dark themes, for phones and paper too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchwise.records import Decision, Study, StudyState
from torchwise.report import format as show
from torchwise.report import summary
from torchwise.report.commands import next_steps
from torchwise.report.costs import workload_of
from torchwise.report.json_export import write_atomically
from torchwise.report.plots.plot import Plot
from torchwise.report.template import Theme, render, render_part
from torchwise.report.trial_details import details
from torchwise.report.trial_table import rows

TEMPLATE = "report.html.j2"


def write_html(study: Study, path: str | Path, name: str | None = None, store: str | None = None) -> Path:
    """Write a study as a page to `path`, whole or not at all, and return the path. See `render_html`.

    Raises:
        StorageError: the file cannot be written.
    """
    return write_atomically(render_html(study, name, store), path)


def render_html(study: Study, name: str | None = None, store: str | None = None) -> str:
    """Return a study as a page. The same study always gives the same page.

    Args:
        study: the results.
        name: name of the study in the page's commands. See `next_steps`.
        store: location of the study's store in those commands.
    """
    return render(TEMPLATE, **{**_context(study), "steps": next_steps(study, name, store)})


def render_html_part(study: Study, theme: Theme) -> str:
    """Return a study as a part of a page. See `template.render_part`."""
    return render_part(TEMPLATE, theme, **_context(study))


def plots(study: Study) -> list[Plot]:
    """Return the plots that the study has the records for."""
    from torchwise.report.plots.cost import cost_plot
    from torchwise.report.plots.latency import latency_plot
    from torchwise.report.plots.speedup import speedup_plot

    found = (speedup_plot(study), latency_plot(study), cost_plot(study))
    return [plot for plot in found if plot]


def _context(study: Study) -> dict[str, Any]:
    candidates = rows(study)
    return {
        "study": study,
        "request": summary.describe_request(study),
        "target": workload_of(study).target,
        "when": summary.when(study.created_at),
        "verdict": study.decision.reason if study.decision else _describe_no_decision(study),
        "figures": _figures(study.decision),
        "caches": summary.caches(study),
        "trust": study.trust if study.is_timed else None,
        "rows": candidates,
        "plots": plots(study),
        "details": details(study, candidates),
        "inspected": summary.inspection_facts(study),
        "environment": summary.environment(study),
        "notes": summary.notes(study),
        "steps": next_steps(study),
    }


def _describe_no_decision(study: Study) -> str:
    if study.state is StudyState.RUNNING:
        return "No decision yet: the search was still running when this page was written."
    return "No decision: the search was interrupted."


def _figures(decision: Decision | None) -> list[summary.Fact]:
    """Return the decision's figures, as pairs of a name and a value."""
    if decision is None or decision.plan.is_eager:
        return []
    calls = show.pluralize(decision.workload.calls, "call")
    found = [
        ("speed-up", show.speedup(decision.speedup)),
        ("pays back after", summary.break_even(decision.break_even_calls)),
        (f"saved over {calls}", summary.format_saving(decision)),
        ("cold compile", show.seconds(decision.cold_s)),
        ("warm compile", show.seconds(decision.warm_s)),
        ("error against the reference", show.relative_error(decision.error)),
    ]
    return [(name, value) for name, value in found if value != show.NONE]
