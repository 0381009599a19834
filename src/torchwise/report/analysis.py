"""An analysis of one plan: the advice first, then its evidence phase by phase, then the next commands."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.analysis import Analysis
from torchwise.records.answer import Answer
from torchwise.report.analysis_phases import inconclusive_saving, phases, speedup_of
from torchwise.report.commands import command_line, is_live
from torchwise.report.document import (
    Block,
    Code,
    Columns,
    Commands,
    Document,
    Fact,
    Facts,
    Medium,
    Only,
    Panel,
    Plot,
    Section,
    Step,
    Tone,
    list_section,
    plot_section,
    trust_text,
)
from torchwise.report.facts import (
    break_even,
    describe_request,
    describe_scope,
    drop_empty,
    environment_section,
    name_report,
)
from torchwise.report.render.html import render_page
from torchwise.report.render.terminal import render_terminal


def render_analysis(analysis: Analysis, store: str | None = None) -> RenderableType:
    """Return an analysis for a terminal. `store` is as in `next_steps`."""
    return render_terminal(analysis_document(analysis, store))


def render_analysis_html(analysis: Analysis, store: str | None = None) -> str:
    """Return an analysis as a page. The same analysis always gives the same page."""
    from torchwise.report.plots.analysis import plots

    return render_page(analysis_document(analysis, store, plots(analysis)))


def analysis_document(analysis: Analysis, store: str | None = None, plots: Sequence[Plot] = ()) -> Document:
    """Return an analysis as a document. Give it the plots if it is for a page."""
    inspection, failure = analysis.inspection, analysis.trial.failure
    plan = f"plan {analysis.plan} ({analysis.plan.id})"
    model = (("Model", inspection.description), *(("Inputs", line) for line in inspection.inputs))
    traceback = [Section("Traceback", (Code(failure.traceback, "Traceback"),))] if failure and failure.traceback else []
    evidence: tuple[Block, ...] = (
        *traceback,
        Columns((Section("The original model", (Facts(model),)), environment_section(analysis.environment))),
    )
    took = f"The analysis took {show.seconds(analysis.seconds)}. " if analysis.seconds else ""
    return Document(
        title=analysis.workload.target,
        brand=name_report("analysis", analysis.created_at),
        subtitles=(inspection.description,),
        blocks=(
            trust_text(analysis.judge_trust()),
            _advice_panel(analysis),
            describe_request(analysis.workload, plan, f"effort {analysis.effort}"),
            *plot_section(plots),
            Columns(tuple(phase.section for phase in phases(analysis))),
            *list_section("Advice", (advice.text for advice in analysis.advice[1:])),
            *list_section("Notes", notes(analysis)),
            Section("Next", (Commands(tuple(next_steps(analysis, store))),)),
            Only(Medium.PAGE, evidence),
        ),
        footer=f"{took}It does not apply to another GPU, driver, PyTorch or model.",
    )


def _advice_panel(analysis: Analysis) -> Panel:
    figures = _collect_figures(analysis)
    return Panel(
        "Inconclusive" if analysis.answer is Answer.INCONCLUSIVE else "Recommendation",
        next((advice.text for advice in analysis.advice), "No advice."),
        (
            *([Only(Medium.PAGE, (Facts(figures),))] if figures else []),
            describe_scope(analysis.workload, analysis.environment),
        ),
        Tone.GOOD if analysis.answer is Answer.YES else Tone.WARNING,
    )


def _collect_figures(analysis: Analysis) -> tuple[Fact, ...]:
    """Return the figures of the first panel, or none for a plan that was not verified."""
    if not analysis.trial.is_verified or analysis.plan.is_eager:
        return ()
    costs, is_figure = analysis.trial.costs, speedup_of(analysis).is_usable
    assert costs is not None, "a verified plan was compiled"
    if analysis.answer is Answer.INCONCLUSIVE:
        return (("speed-up", show.speedup(analysis.speedup)),)
    saved = show.seconds(analysis.saved_s) if is_figure else inconclusive_saving(analysis)
    return drop_empty(
        [
            ("speed-up", show.speedup(analysis.speedup)),
            ("pays back after", break_even(analysis.break_even_calls) if is_figure else show.NONE),
            (f"saved over {show.pluralize(analysis.workload.calls, 'call')}", saved),
            ("cold compile", show.seconds(costs.cold_s)),
            ("warm compile", show.seconds(costs.warm_s)),
            ("memory to reserve", show.size(analysis.steady.memory.reserve if analysis.steady else None)),
        ]
    )


def notes(analysis: Analysis) -> list[str]:
    """Return the notes of the inspection. `Analysis.judge_trust` returns the reliability of times."""
    return [show.one_line(note) for note in dict.fromkeys(analysis.inspection.notes)]


def next_steps(analysis: Analysis, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first.

    Args:
        analysis: the results.
        store: location of the store for these commands, or None for the default store.
    """
    spec, live = analysis.workload, is_live(analysis.workload)
    store_option = () if store is None else ("--store", store)
    plan = ("--plan", analysis.plan.to_json())
    tune = "torchwise.tune(model, args)" if live else command_line("tune", spec, *store_option)
    steps = [Step(tune, "tries all plans that may pay back, and chooses one")]
    if not analysis.batches:
        scaled = "torchwise.analyze(model, args, batches=(1, 2, 4, 8))"
        again = scaled if live else command_line("analyze", spec, *plan, "--batches", "1,2,4,8", *store_option)
        steps.append(Step(again, "measures time and throughput by batch size, and compiles for each size"))
    if not live and (analysis.trial.failure or not analysis.trial.is_verified):
        cause = command_line("bisect", spec, *plan, *store_option)
        steps.insert(0, Step(cause, "finds the cause of the failure or the wrong answer"))
    return steps
