"""An analysis of one plan: the advice first, then its evidence phase by phase, then the next commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from torchwise.records import Interval, Outcome
from torchwise.records import format as show
from torchwise.records.analysis import MARGIN, Analysis, Batch, BatchFigures, Consistency
from torchwise.records.answer import Answer, exceeds
from torchwise.records.candidates import verdict_word
from torchwise.report import document as doc
from torchwise.report.facts import (
    break_even,
    check_table,
    command_line,
    describe_request,
    describe_scope,
    drop_empty,
    environment_section,
    format_time_by_kind,
    is_live,
    name_report,
    notes,
)
from torchwise.report.html import Theme, render_page, render_part
from torchwise.report.terminal import render_terminal


def render_analysis(analysis: Analysis, store: str | None = None) -> RenderableType:
    """Return an analysis for a terminal. `store` is as in `next_steps`."""
    return render_terminal(analysis_document(analysis, store))


def render_analysis_html(analysis: Analysis, store: str | None = None) -> str:
    """Return an analysis as a page. The same analysis always gives the same page."""
    from torchwise.report.plots.analysis import plots

    return render_page(analysis_document(analysis, store, plots(analysis)))


def render_analysis_part(analysis: Analysis, theme: Theme) -> str:
    """Return an analysis as a part of a page. See `render_part`."""
    from torchwise.report.plots.analysis import plots

    return render_part(analysis_document(analysis, plots=plots(analysis)), theme)


def analysis_document(analysis: Analysis, store: str | None = None, plots: Sequence[doc.Plot] = ()) -> doc.Document:
    """Return an analysis as a document. Give it the plots if it is for a page."""
    inspection, failure = analysis.inspection, analysis.trial.failure
    plan = f"plan {analysis.plan} ({analysis.plan.id})"
    model = (("Model", inspection.description), *(("Inputs", line) for line in inspection.inputs))
    traceback = (
        [doc.Section("Traceback", (doc.Code(failure.traceback, "Traceback"),))] if failure and failure.traceback else []
    )
    evidence: tuple[doc.Block, ...] = (
        *traceback,
        doc.Columns(
            (doc.Section("The original model", (doc.Facts(model),)), environment_section(analysis.environment))
        ),
    )
    took = f"The analysis took {show.seconds(analysis.seconds)}. " if analysis.seconds else ""
    return doc.Document(
        title=analysis.workload.target,
        brand=name_report("analysis", analysis.created_at),
        subtitles=(inspection.description,),
        blocks=(
            doc.trust_text(analysis.judge_trust()),
            _advice_panel(analysis),
            describe_request(analysis.workload, plan, f"effort {analysis.effort}"),
            *doc.plot_section(plots),
            doc.Columns(tuple(phase.section for phase in phases(analysis))),
            *doc.list_section("Advice", (advice.text for advice in analysis.advice[1:])),
            *doc.list_section("Notes", notes(analysis)),
            doc.Section("Next", (doc.Commands(tuple(next_steps(analysis, store))),)),
            doc.Only(doc.Medium.PAGE, evidence),
        ),
        footer=f"{took}It does not apply to another GPU, driver, PyTorch or model.",
    )


def _advice_panel(analysis: Analysis) -> doc.Panel:
    figures = _collect_figures(analysis)
    return doc.Panel(
        "Inconclusive" if analysis.answer is Answer.INCONCLUSIVE else "Recommendation",
        next((advice.text for advice in analysis.advice), "No advice."),
        (
            *([doc.Only(doc.Medium.PAGE, (doc.Facts(figures),))] if figures else []),
            describe_scope(analysis.workload, analysis.environment),
        ),
        doc.answer_tone(analysis.answer),
    )


def _collect_figures(analysis: Analysis) -> tuple[doc.Fact, ...]:
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


def next_steps(analysis: Analysis, store: str | None = None) -> list[doc.Step]:
    """Return the next commands, the most useful first."""
    spec, live = analysis.workload, is_live(analysis.workload)
    plan = ("--plan", analysis.plan.to_json())
    tune = "torchwise.tune(model, args)" if live else command_line("tune", spec, store=store)
    steps = [doc.Step(tune, "tries all plans that may pay back, and chooses one")]
    if not analysis.batches and not analysis.trial.failure:
        scaled = "torchwise.analyze(model, args, batches=(1, 2, 4, 8))"
        again = scaled if live else command_line("analyze", spec, *plan, "--batches", "1,2,4,8", store=store)
        steps.append(doc.Step(again, "measures time and throughput by batch size, and compiles for each size"))
    if not live and (analysis.trial.failure or not analysis.trial.is_verified):
        cause = command_line("bisect", spec, *plan, store=store)
        steps.insert(0, doc.Step(cause, "finds the cause of the failure or the wrong answer"))
    return steps


ROUND_CALLS = (1, 100, 10_000, 1_000_000)
"""Numbers of calls in a table of costs, besides the expected number."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: a title, its subject, facts, and a table if there is one."""

    key: str
    title: str
    facts: tuple[doc.Fact, ...] = ()
    table: doc.Table | None = None
    note: str = ""

    @property
    def section(self) -> doc.Section:
        """The phase as a part of a document."""
        blocks: list[doc.Block] = [doc.Facts(self.facts)] if self.facts else []
        blocks += [self.table] if self.table else []
        blocks += [doc.Text(self.note, tone=doc.Tone.MUTED)] if self.note else []
        return doc.Section(self.title, tuple(blocks))


def phases(analysis: Analysis) -> list[Phase]:
    """Return the phases that have something to show, in order."""
    builders = (baseline, compile_cost, speed, economics, memory, correctness, batch_scaling)
    built = (build(analysis) for build in builders)
    return [phase for phase in built if phase.facts or phase.table or phase.note]


def baseline(analysis: Analysis) -> Phase:
    """Describe the time and memory of the original model."""
    inspection = analysis.inspection
    is_timed = bool(inspection.measurement.baseline_s)
    has_peak = analysis.steady is not None and analysis.steady.memory.baseline_call is not None
    facts = [
        ("Per call", show.seconds(analysis.cost_model.baseline_s) if analysis.eager.baseline_s else show.NONE),
        ("Against itself", show.speedup(inspection.measurement.speedup) if is_timed else show.NONE),
        ("First call", f"{show.seconds(inspection.first_call_s)} longer than later calls"),
        ("Peak memory of a call", show.NONE if has_peak else show.size(inspection.peak_memory)),
        ("Time by kind of operation", format_time_by_kind(inspection)),
    ]
    return Phase("baseline", "Baseline: eager", drop_empty(facts))


def compile_cost(analysis: Analysis) -> Phase:
    """Describe the cost of the first calls, cold and warm."""
    costs, trial = analysis.trial.costs, analysis.trial
    facts: list[doc.Fact] = []
    if trial.failure:
        facts.append(("Failed", show.truncate(str(trial.failure), 400)))
    if costs:
        facts += [
            ("Cold, empty caches", show.seconds(costs.cold_s)),
            ("Warm, full caches", show.seconds(costs.warm_s)),
            ("Compile caches", show.size(costs.cache_bytes) if costs.cache_bytes else show.NONE),
        ]
    return Phase("compiling", "Compile cost", drop_empty(facts))


def speed(analysis: Analysis) -> Phase:
    """Describe how fast the plan is, and how much its calls vary."""
    facts = [("Speed-up over eager", show.speedup(analysis.speedup))]
    if analysis.trial.measurement:
        facts.append(("Per call", show.time(analysis.time)))
        if analysis.trial.measurement.busy_s is not None:
            facts.append(("GPU waiting for the host", show.percent(analysis.trial.measurement.launch_share)))
    table, calls = None, analysis.calls
    if calls:
        sides = ((show.one_line(str(analysis.plan)), calls[0]), ("eager", calls[1]))
        header = ("", "calls", "p50", "p95", "p99", "mean", "variation", "drift", "outliers")
        table = doc.figures_table("Single calls", header, (_consistency(name, side) for name, side in sides))
    return Phase("speed", "Speed and variation", drop_empty(facts), table)


def economics(analysis: Analysis) -> Phase:
    """Describe after how many calls compiling pays back, and how much it saves."""
    if not analysis.trial.is_verified:
        return Phase("economics", "Break-even")
    found, trial = analysis.cost_model, analysis.tried
    each, calls, starts = found.seconds_per_call(trial).mid, analysis.workload.calls, analysis.workload.restarts
    compiling = (f"Compiling, {show.pluralize(starts, 'start')}", show.seconds(found.overhead(trial)))
    worth = _worth(analysis)
    if exceeds(speedup_of(analysis)) is Answer.INCONCLUSIVE or not speedup_of(analysis).is_usable:
        facts = [compiling, ("Saving", inconclusive_saving(analysis)), *worth]
        return Phase("economics", "Break-even", drop_empty(facts))
    pays = analysis.break_even_calls
    facts = [
        ("Saved per call", show.seconds(found.baseline_s - each)),
        compiling,
        ("Pays back after", break_even(pays) if pays else "never, as far as the measurements show"),
        (f"Saved over {show.pluralize(calls, 'call')}", show.seconds(analysis.saved_s)),
        ("Return on compiling", _return(analysis.return_on_compiling)),
        *worth,
    ]
    lines = tuple(
        (show.count(n), show.seconds(n * found.baseline_s), show.seconds(found.overhead(trial) + n * each))
        for n in sorted({*ROUND_CALLS, calls})
    )
    table = doc.figures_table("Cost over calls", ("calls", "eager", "plan"), lines)
    return Phase("economics", "Break-even", drop_empty(facts), table)


def _worth(analysis: Analysis) -> tuple[doc.Fact, ...]:
    """Return the calls that eager answers meanwhile, the risk and the grade of a verified plan."""
    found, risk = analysis.cost_model, analysis.probability_of_loss
    if risk is None or analysis.grade is None:
        return ()
    return (
        ("Eager's calls while compiling", show.count(found.count_calls(found.overhead(analysis.tried)))),
        ("Eager's calls while analyzing", show.count(found.count_calls(analysis.seconds))),
        ("Probability that it does not pay", show.probability(risk)),
        ("Grade", analysis.grade),
    )


def _return(earned: Interval | None) -> str:
    if earned is None:
        return "nothing is compiled"
    return f"{show.percent(earned.mid)} [{show.percent(earned.low)}, {show.percent(earned.high)}]"


def speedup_of(analysis: Analysis) -> Interval:
    """Return the speed-up of a plan that was timed."""
    assert analysis.speedup is not None, "a verified plan was timed"
    return analysis.speedup


def inconclusive_saving(analysis: Analysis) -> str:
    """Describe a saving that is too uncertain for a figure."""
    is_faster, saved = exceeds(speedup_of(analysis)) is Answer.YES, analysis.saved_s
    return f"at least {show.seconds(saved)}" if is_faster and saved and saved > 0 else "inconclusive"


def memory(analysis: Analysis) -> Phase:
    """Describe the memory that a process with the plan needs."""
    if analysis.steady is None:
        return Phase("memory", "Memory")
    found = analysis.steady.memory
    overhead = (
        None if found.overhead is None else f"{'+' if found.overhead >= 0 else '-'}{show.size(abs(found.overhead))}"
    )
    facts = [
        ("Parameters and buffers", show.size(found.model)),
        ("Inputs", show.size(found.inputs)),
        ("Peak of a call", show.size(found.call)),
        ("Peak of eager's call", show.size(found.baseline_call)),
        ("More than eager", overhead or show.NONE),
        ("Peak of a warm start", show.size(found.start)),
        (f"Memory to reserve, {show.percent(MARGIN)} margin", show.size(found.reserve)),
    ]
    return Phase("memory", "Memory", drop_empty(facts))


def correctness(analysis: Analysis) -> Phase:
    """Describe whether the answers are correct."""
    verdict = analysis.trial.verdict
    if verdict is None:
        return Phase("correctness", "Correctness")
    facts = [
        ("Answers", verdict_word(verdict)),
        ("Error against float64", show.relative_error(verdict.error)),
    ]
    if verdict.outcome is not Outcome.PASS:
        facts.append(("Reason", show.truncate(verdict.reason, 400)))
    table = next(iter(check_table("the plan", verdict)), None)
    return Phase("correctness", "Correctness", drop_empty(facts), table)


def batch_scaling(analysis: Analysis) -> Phase:
    """Describe how time and throughput change with the batch size."""
    note = show.one_line(analysis.batch_note)
    if not analysis.batches:
        return Phase("scaling", "Batch sizes", note=note)
    header = ("batch", "per call", "items/s", "eager", "eager items/s", "speed-up", "cold")
    missing = [f"batch {b.size}: {show.truncate(b.reason, 300)}" for b in analysis.batches if b.reason]
    figures = {found.size: found for found in analysis.batch_figures}
    unclear = [show.count(found.size) for found in figures.values() if not found.is_comparable]
    if unclear:
        missing.append(f"too uncertain against the size of the given inputs for a time: {', '.join(unclear)}")
    lines = tuple(_batch(batch, figures.get(batch.size)) for batch in analysis.batches)
    table = doc.figures_table("Batch sizes", header, lines)
    return Phase("scaling", "Batch sizes", table=table, note="; ".join(filter(None, [note, *missing])))


def _consistency(name: str, side: Consistency) -> tuple[str, ...]:
    quantiles = (show.seconds(side.quantile(share)) for share in (0.5, 0.95, 0.99))
    tenfold = side.drift >= 9
    drift = show.ratio(1 + side.drift) if tenfold else f"{side.drift:+.1%}".replace("%", " %")
    return (
        name,
        show.count(len(side.calls_s)),
        *quantiles,
        show.seconds(side.mean),
        show.percent(side.variation),
        drift,
        show.count(side.outliers),
    )


def _batch(batch: Batch, figures: BatchFigures | None) -> tuple[str, ...]:
    if figures is None:
        return (show.count(batch.size), *([show.NONE] * 6))
    scaled, is_figure = figures.is_comparable, figures.is_comparable and figures.speedup.is_usable
    return (
        show.count(batch.size),
        show.time(figures.time) if scaled else show.NONE,
        show.three(figures.throughput) if is_figure else show.NONE,
        show.seconds(figures.eager_s) if scaled else show.NONE,
        show.three(figures.baseline_throughput) if scaled else show.NONE,
        show.speedup(figures.speedup),
        show.seconds(batch.costs.cold_s if batch.costs else None),
    )
