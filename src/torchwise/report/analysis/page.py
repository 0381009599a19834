"""An analysis as one self-contained page, in the layout of `base.html.j2`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchwise.records.analysis import Analysis
from torchwise.records.answer import Answer
from torchwise.report import format as show
from torchwise.report import summary
from torchwise.report.analysis.phases import describe_request, inconclusive_saving, phases, speedup_of
from torchwise.report.analysis.plots import plots
from torchwise.report.analysis.steps import next_steps, notes
from torchwise.report.json_export import write_atomically
from torchwise.report.template import render

TEMPLATE = "analyze.html.j2"


def write_analysis_html(analysis: Analysis, path: str | Path, store: str | None = None) -> Path:
    """Write an analysis as a page to `path`, whole or not at all, and return the path. `store` is as in `next_steps`.

    Raises:
        StorageError: the file cannot be written.
    """
    return write_atomically(render_analysis_html(analysis, store), path)


def render_analysis_html(analysis: Analysis, store: str | None = None) -> str:
    """Return an analysis as a page. The same analysis always gives the same page."""
    head, *rest = [advice.text for advice in analysis.advice] or ["No advice."]
    return render(
        TEMPLATE,
        analysis=analysis,
        target=analysis.workload.target,
        when=summary.when(analysis.created_at),
        request=describe_request(analysis),
        trust=analysis.judge_trust(),
        answer=analysis.answer,
        head=head,
        advice=rest,
        figures=_figures(analysis),
        phases=phases(analysis),
        plots=plots(analysis),
        checks=summary.list_checks(analysis.trial.verdict),
        traceback=analysis.trial.failure.traceback if analysis.trial.failure else "",
        notes=notes(analysis),
        steps=next_steps(analysis, store),
        environment=summary.machine(analysis.environment),
        inputs=[("Model", analysis.inspection.description), *(("Inputs", line) for line in analysis.inspection.inputs)],
    )


def _figures(analysis: Analysis) -> list[summary.Fact]:
    """Return the figures of the first panel, or none for a plan that was not verified."""
    if not analysis.trial.is_verified or analysis.plan.is_eager:
        return []
    costs, is_figure = analysis.trial.costs, speedup_of(analysis).is_usable
    assert costs is not None, "a verified plan was compiled"
    if analysis.answer is Answer.INCONCLUSIVE:
        return [("speed-up", show.speedup(analysis.speedup))]
    found: list[tuple[str, Any]] = [
        ("speed-up", show.speedup(analysis.speedup)),
        ("pays back after", summary.break_even(analysis.break_even_calls) if is_figure else show.NONE),
        (
            f"saved over {show.pluralize(analysis.workload.calls, 'call')}",
            show.seconds(analysis.saved_s) if is_figure else inconclusive_saving(analysis),
        ),
        ("cold compile", show.seconds(costs.cold_s)),
        ("warm compile", show.seconds(costs.warm_s)),
        ("memory to reserve", show.size(analysis.steady.memory.reserve if analysis.steady else None)),
    ]
    return [(name, value) for name, value in found if value and value != show.NONE]
